"""Runs whose ranks train alone for some steps and then exchange what their parameters have changed by (--sync-every)."""
from __future__ import annotations

from . import units
from .run import Run
from .table import Column, Row, Table, count, name


def steps_between(run: Run, epoch: dict[str, float]) -> float | None:
    """The mean number of steps between two exchanges in the epoch of this row."""
    steps, exchanges = run.optimizer_steps_in(epoch), epoch.get("exchanges")
    return steps / exchanges if steps and exchanges else None


def rounds_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    for run in runs:
        if not run.sync_every or run.typical is None:
            continue
        exchanges, exposed, sent = (run.time(key) or None for key in ("exchanges", "exposed_comm_s", "sent_bytes"))
        last = {str(key): value for key, value in run.epochs.iloc[-1].items()}
        rows.append({
            "run": run.label, "sync_every": run.sync_every,
            "sync_delay": run.sync_delay, "outer_lr": (run.outer or ("1", "0"))[0],
            "outer_momentum": (run.outer or ("1", "0"))[1], "exchanges": exchanges,
            "steps": steps_between(run, run.typical), "last_steps": steps_between(run, last),
            "exposed_ms": 1e3 * exposed / exchanges if exposed and exchanges else None,
            "exposed_share": exposed / run.epoch_s if exposed and run.epoch_s else None,
            "sent_mb": sent / exchanges / run.world_size / 1e6 if sent and exchanges else None
        })
    if not rows:
        return None
    columns = [
        name("run", "run"),
        name("sync_every", "--sync-every", True),
        name("sync_delay", "delay, steps", True),
        name("outer_lr", "outer rate", True),
        name("outer_momentum", "outer momentum", True),
        Column("exchanges", "exchanges an epoch", units.size),
        Column("steps", "steps between two", units.digits),
        Column("last_steps", "in the last epoch", units.digits, may_fold=True),
        Column("exposed_ms", "waits for one, ms"),
        Column("exposed_share", "of the epoch, %", units.percent),
        Column("sent_mb", "a rank sends, MB")
    ]
    return Table("rounds", "Rounds", columns, rows, [
        "Each rank trains alone for some steps, and then all exchange what their parameters have changed by. Steps between "
        "two: the mean of a typical epoch and of the last one; an epoch ends its last round. Waits for one: exposed "
        "communication of an exchange; a rank sends: in one exchange."
    ])
