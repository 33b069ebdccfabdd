"""Which epochs lack rows in one of a log's tables, as after a loss of power.

The report leaves out rows of epochs that /epochs lacks, and those of an epoch of which /ranks or /buckets has only a
part; the run's problems say so. Steps of the epoch that goes on, or went on when the run ended, are no such rows.
"""
from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from .run import Run

MOST_NAMED = 5


def named(epochs: list[int]) -> str:
    """"epoch 3", "epochs 3 to 7", "epochs 1, 3 and 5", "epochs 1, 3, 5, 7, 9 and 12 others"; counts from 1."""
    shown = [f"{epoch + 1}" for epoch in epochs]
    if len(shown) == 1:
        return f"epoch {shown[0]}"
    if len(shown) > 2 and epochs[-1] - epochs[0] == len(epochs) - 1:
        return f"epochs {shown[0]} to {shown[-1]}"
    if len(shown) > MOST_NAMED + 1:
        shown[MOST_NAMED:] = [f"{len(shown) - MOST_NAMED} others"]
    return f"epochs {', '.join(shown[:-1])} and {shown[-1]}"


def check(run: Run) -> None:
    """Makes the tables fit /epochs, and adds what they lack to the problems."""
    run.ranks = _fitted(run, "ranks", run.ranks)
    run.buckets = _fitted(run, "buckets", run.buckets)
    run.tensors = _without_foreign(run, "tensors", run.tensors, _there(run))
    last = max(_there(run), default=-1)
    ongoing = set() if run.is_finished else {last + 1}
    run.steps = _without_foreign(run, "steps", run.steps, _there(run) | ongoing)
    if run.steps is not None and "epoch" in run.steps:
        have = set(run.steps["epoch"])
        _say(run, [int(row["epoch"]) for row in run.epochs.to_dict("records")
                   if row["epoch"] not in have and _logs_steps(run, row)], "steps")


def _there(run: Run) -> set[int]:
    return {int(epoch) for epoch in run.epochs["epoch"]}


def _say(run: Run, epochs: list[int], table: str) -> None:
    if epochs:
        run.problems.append(f"{named(epochs)} {'has' if len(epochs) == 1 else 'have'} no rows in /{table}")


def _without_foreign(run: Run, name: str, table: pd.DataFrame | None, known: set[int]) -> pd.DataFrame | None:
    """The table without the rows of epochs that are not in /epochs."""
    if table is None or "epoch" not in table:
        return table
    is_known = table["epoch"].isin(known)
    foreign = sorted({int(epoch) for epoch in table.loc[~is_known, "epoch"]})
    if foreign:
        run.problems.append(f"{named(foreign)} {'has' if len(foreign) == 1 else 'have'} no row in /epochs; the rows in "
                            f"/{name} are left out")
    return table[is_known]


def _fitted(run: Run, name: str, table: pd.DataFrame | None) -> pd.DataFrame | None:
    """The table without rows of unknown epochs and of epochs that have only some of their rows."""
    table = _without_foreign(run, name, table, _there(run))
    if table is None or "epoch" not in table or (name == "buckets" and run.model.get("buckets") == 0):
        return table
    counts = {int(epoch): int(count) for epoch, count in table.groupby("epoch").size().items()}
    _say(run, [epoch for epoch in sorted(_there(run)) if epoch not in counts], name)
    parts = [epoch for epoch, count in counts.items() if count < _rows_of(run, name, counts, epoch)]
    if parts:
        run.problems.append(f"{named(parts)} {'has' if len(parts) == 1 else 'have'} only a part of the rows in /{name} "
                            f"({counts[parts[0]]} of {_rows_of(run, name, counts, parts[0])}), which is left out")
    return table[~table["epoch"].isin(parts)]


def _rows_of(run: Run, name: str, counts: dict[int, int], epoch: int) -> int:
    """How many rows this epoch has in a whole log."""
    if name == "ranks":
        return _world_size(run, epoch)
    # The number of buckets changes only where the program was started again.
    return 0 if epoch in _starts(run) else counts.get(epoch - 1, 0)


def _starts(run: Run) -> set[int]:
    has = run.sessions is not None and "first_epoch" in run.sessions
    return {int(epoch) for epoch in run.sessions["first_epoch"]} if has else set()  # type: ignore[index]


def _world_size(run: Run, epoch: int) -> int:
    """The number of ranks that ended this epoch."""
    if run.sessions is None or not {"first_epoch", "world_size"} <= set(run.sessions):
        return run.world_size
    before = run.sessions[run.sessions["first_epoch"] <= epoch]
    return int(before["world_size"].iloc[-1]) if len(before) else run.world_size


def _logs_steps(run: Run, row: Mapping[str, float]) -> bool:
    """Whether some step of the epoch of this row is logged, as of every epoch of its length."""
    try:
        every = int(run.config["log-steps"])
    except (KeyError, ValueError):
        return False
    return 0 < every <= (Run.optimizer_steps_in(row) or 0)
