"""Time and bytes to an accuracy, over each link (reach.py)."""
from __future__ import annotations

from . import reach, units
from .run import Run
from .table import Column, Row, Table, count, name

NOTE = (
    "What an exchange does to learning does not depend on the link. So each training ran once, and the times of steps were "
    "measured over the links by other runs with the same model, ranks, batch and exchange; the two are joined here: seconds "
    "to an accuracy = epochs to it (on straight lines between epochs, evaluation not counted) x steps of an epoch x measured "
    "seconds of a step.")


def reach_tables(runs: list[Run]) -> list[Table]:
    return [_table(one, number) for number, one in enumerate(reach.reaches(runs), 1)]


def _table(found: reach.Reach, number: int) -> Table:
    rows: list[Row] = []
    for curve in found.curves:
        row: Row = {
            "exchange": curve.exchange, "runs": len(curve.runs), "test_accuracy": curve.accuracy[-1],
            "spread": curve.spread[-1] if len(curve.runs) > 1 else None,
            "is_equal": "yes" if curve.accuracy[-1] >= found.equal else "no", "sent_mb": curve.sent_mb[-1],
            "of_bytes": found.fp32.sent_mb[-1] / curve.sent_mb[-1] if curve.sent_mb[-1] else None
        }
        for i, mark in enumerate(found.marks, 1):
            row[f"mb_{i}"] = curve.mb_to(mark)
            for link in found.links:
                row[f"{link} seconds_{i}"] = curve.seconds_to(mark, link)
        rows.append(row)
    columns = [
        name("exchange", "exchange"),
        count("runs", "seeds", True),
        Column("test_accuracy", "test acc., %", units.percent),
        Column("spread", "std. dev.", units.percent),
        name("is_equal", "equal"),
        Column("sent_mb", "a rank sends, MB"),
        Column("of_bytes", "times fewer"),
    ]
    for i, mark in enumerate(found.marks, 1):
        columns.append(Column(f"mb_{i}", f"MB to {units.percent(mark)} %"))
        columns += [Column(f"{link} seconds_{i}", f"{link}: s to {units.percent(mark)} %") for link in found.links]
    notes = [
        f"Means over the seeds; std. dev.: of their accuracies, in points. Equal: within {reach.SPREADS:g} standard "
        f"deviations of fp32's seeds, that is at least {units.percent(found.equal)} %. H: steps between two exchanges; outer: "
        "rate and momentum of the outer optimiser. Times fewer: bytes than fp32 at every step. A dash: it is not reached, or "
        "nobody has measured these steps over this link.",
        NOTE if found.links else "No run has measured the steps over links (--throttle, or a lab), so there are no times."
    ]
    first = found.fp32.runs[0]
    return Table(f"reach_{number}", f"Time and bytes to an accuracy: {first.model_name}, {first.world_size} ranks", columns,
                 rows, notes)
