"""Compares codecs, and rounds: runs that differ only in what they exchange and when, and its effect on time, bytes and learning."""
from __future__ import annotations

import statistics
from collections.abc import Callable

from . import chance, compare, units
from .run import Run
from .table import Column, Row, Table, count, name, size

MOST_SENTENCES = 6
UNEQUAL = 1.25  # the most by which two times of the same computation differ
# These belong to the exchange, or follow from it or from chance.
FREE = (compare.EXCHANGE - {"topology"}) | {"seed", "exchange_path", "git_revision"}


def circumstances(run: Run) -> tuple:
    """All that was chosen for a run but what it exchanges, and when."""
    said = compare.setting(run)
    return (run.link_name, *(f"{key}={value}" for key, value in sorted(said.items()) if key not in FREE))


def same_work(run: Run, other: Run) -> bool:
    """False if computation alone took so different times that the machine was busier in one of the runs, since a codec
    hardly changes them."""
    return _are_near(run.time("compute_s"), other.time("compute_s"))


def _are_near(one: float | None, other: float | None) -> bool:
    least, most = sorted([one or 0.0, other or 0.0])
    return not most > UNEQUAL * least > 0


def _median(runs: list[Run], value: Callable[[Run], float | None]) -> float | None:
    found = [number for run in runs if units.is_number(number := value(run))]
    return statistics.median(found) if found else None  # type: ignore[type-var]


def _row(runs: list[Run], errors: dict[str, float]) -> Row:
    first = runs[0]
    sent = _median(runs, lambda run: run.sent_an_epoch)
    return {
        "runs": len(runs), "labels": [run.label for run in runs], "codec": first.exchange, "ranks": first.world_size,
        "batch": first.batch, "topology": first.topology, "link": first.link_name,
        "epochs": max(len(run.epochs) for run in runs),
        "epoch_s": _median(runs, lambda run: run.epoch_s),
        "compute_s": _median(runs, lambda run: run.time("compute_s")), "sent_mb": None if sent is None else sent / 1e6,
        "train_loss": _median(runs, lambda run: run.last("train_loss")),
        "test_accuracy": _median(runs, lambda run: run.last("test_accuracy")),
        "accuracy_error": _median(runs, lambda run: errors.get(run.label))
    }


def codec_groups(runs: list[Run]) -> list[list[Row]]:
    """For each group of runs with several codecs: one row per codec, the one that sends the most bytes first."""
    several = [run for run in runs if run.exchanges and run.epoch_s]
    groups, errors = [], chance.standard_errors(runs)
    for same in compare.groups(several, lambda run: (circumstances(run), len(run.epochs))).values():
        rows = [_row(group, errors) for group in compare.groups(same, lambda run: run.exchange).values()]
        if len(rows) < 2:
            continue
        rows.sort(key=lambda row: (row["codec"] != "none", -(row["sent_mb"] or 0.0)))
        reference = rows[0]
        for row in rows:
            row["times_as_fast"] = reference["epoch_s"] / row["epoch_s"]
            row["of_bytes"] = (row["sent_mb"] / reference["sent_mb"]
                               if row["sent_mb"] is not None and reference["sent_mb"] else None)
            row["loss_more"] = _minus(row["train_loss"], reference["train_loss"])
            row["accuracy_more"] = _minus(row["test_accuracy"], reference["test_accuracy"])
            row["against"] = reference["codec"]
        groups.append(rows)
    return groups


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _points(value: float | None) -> str:
    return f"{100 * value + 0.0:+.1f}" if units.is_number(value) else units.DASH  # type: ignore[operator]


def _signed(value: float | None) -> str:
    return f"{round(value, 3) + 0.0:+.3f}" if units.is_number(value) else units.DASH  # type: ignore[arg-type]


def sentence(rows: list[Row]) -> str:
    """The fastest codec, and its loss."""
    best = min(rows, key=lambda row: row["epoch_s"])
    other = rows[0] if best is not rows[0] else min(rows[1:], key=lambda row: row["epoch_s"])
    text = (f"{best['ranks']} ranks, batch {units.size(best['batch'])}, {best['topology']}, {best['link']}: "
            f"{best['codec']} is the fastest with {units.digits(best['epoch_s'])} s an epoch; {other['codec']} takes "
            f"{units.digits(other['epoch_s'])} s, {other['epoch_s'] / best['epoch_s']:.2f} times as long.")
    if not _are_near(best["compute_s"], other["compute_s"]):
        text += (f" But computation alone took {units.digits(best['compute_s'])} and {units.digits(other['compute_s'])} s, "
                 "which a codec hardly changes: the machine was busier in one of the runs, so repeat them.")
    if units.is_number(best["train_loss"]) and units.is_number(other["train_loss"]):
        text += (f" The last training loss is {best['train_loss']:.3f} with {best['codec']} and "
                 f"{other['train_loss']:.3f} with {other['codec']}.")
    difference = _minus(best["test_accuracy"], other["test_accuracy"])
    if units.is_number(difference):
        text += (f" The test accuracy is {units.percent(best['test_accuracy'])} % with {best['codec']} and "
                 f"{units.percent(other['test_accuracy'])} % with {other['codec']}")
        text += _verdict(difference or 0.0, best["accuracy_error"], other["accuracy_error"]) + "."
    return text


def _verdict(difference: float, one: float | None, other: float | None) -> str:
    """Whether two accuracies are different."""
    least = chance.of_difference(one, other)
    if least is None:
        return ""
    return ("; they are different" if abs(difference) > least else "; they are not different") + (
        f" (by the rule of {chance.PLACE}, {units.percent(least)} points)")


def codecs_table(runs: list[Run]) -> Table | None:
    groups = codec_groups(runs)
    if not groups:
        return None
    rows = [row for group in groups for row in group]
    columns = [
        count("ranks", "ranks", True),
        size("batch", "batch", True),
        name("topology", "topology", True),
        name("link", "link", True),
        name("codec", "codec"),
        count("runs", "runs", True),
        count("epochs", "epochs", True),
        Column("epoch_s", "epoch, s"),
        Column("times_as_fast", "times as fast", units.fixed(2)),
        Column("sent_mb", "sent, MB"),
        Column("of_bytes", "of the bytes, %", units.percent),
        Column("train_loss", "loss", units.fixed(3)),
        Column("loss_more", "against", _signed),
        Column("test_accuracy", "test acc., %", units.percent),
        Column("accuracy_more", "points against", _points),
        Column("accuracy_error", "std. error", units.percent),
        name("against", "compared with", True)
    ]
    notes = [
        "Runs that are alike but for the codec, rounds (H: steps between two exchanges; outer: rate and momentum of the outer "
        "optimiser) and the seed. Times as fast, of the bytes, and both columns against: "
        "compared with none, or where there is no such run with the codec that sends most. Sent: by all ranks in "
        "an epoch, the mean over all epochs. Loss: training loss of the last epoch; test acc.: test accuracy after it; std. error: its standard error, "
        f"in points (see {chance.PLACE}). Of several runs the medians."
    ]
    notes += [sentence(group) for group in groups[:MOST_SENTENCES]]
    return Table("codecs", "Codecs side by side", columns, rows, notes)
