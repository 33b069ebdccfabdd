"""How ranks shared the images of a step, where shares changed or were uneven (--shares)."""
from __future__ import annotations

import pandas as pd

from . import units
from .run import Run
from .table import Column, Row, Table, name

MOST_CHANGES = 12  # in the table of a run; the plot has all


def changes_of(run: Run) -> list[tuple[int, pd.DataFrame]]:
    """The first step with each division, and its rows by rank."""
    if run.shares is None or not {"step", "rank", "images"} <= set(run.shares) or not len(run.shares):
        return []
    return [(int(step), rows.sort_values("rank")) for step, rows in run.shares.groupby("step")]


def has_uneven_shares(run: Run) -> bool:
    changes = changes_of(run)
    return len(changes) > 1 or any(rows["images"].nunique() > 1 for _, rows in changes)


def least_s(fixed_s: list[float], image_s: list[float], images: int) -> float:
    """The time of a step if images could be divided without bounds and in parts: sum of (T - fixed) / image = images."""
    return (images + sum(a / b for a, b in zip(fixed_s, image_s))) / sum(1 / b for b in image_s)


def shares_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    for run in (run for run in runs if has_uneven_shares(run)):
        for step, of_ranks in changes_of(run)[-MOST_CHANGES:]:
            row: Row = {"run": run.label, "step": step, "images": " ".join(str(int(n)) for n in of_ranks["images"])}
            if "compute_s" in of_ranks and of_ranks["compute_s"].notna().any():
                row |= {"fastest_ms": 1e3 * of_ranks["compute_s"].min(), "slowest_ms": 1e3 * of_ranks["compute_s"].max(),
                        "step_ms": 1e3 * of_ranks["step_s"].max()}
                after = of_ranks["fixed_s"] + of_ranks["image_s"] * of_ranks["images"]
                row["expected_ms"] = 1e3 * after.max()
                if (of_ranks["image_s"] > 0).all():
                    row["least_ms"] = 1e3 * least_s(list(of_ranks["fixed_s"]), list(of_ranks["image_s"]),
                                                    int(of_ranks["images"].sum()))
            rows.append(row)
    if not rows:
        return None
    columns = [
        name("run", "run"),
        Column("step", "from step", units.size),
        name("images", "images of the ranks", True),
        Column("fastest_ms", "fastest rank before, ms"),
        Column("slowest_ms", "slowest rank before, ms"),
        Column("expected_ms", "slowest rank expected, ms"),
        Column("least_ms", "least possible, ms"),
        Column("step_ms", "a step before, ms")
    ]
    return Table("shares", "Shares of the batch", columns, rows, [
        "How many images each rank computed in a step. Before: what the steps before the change took, without waiting for "
        "other ranks and, in the last column, with it. Expected: by the model that each rank's steps have given. Least possible: "
        "if all ranks ended at the same moment, without bounds on shares."
    ])
