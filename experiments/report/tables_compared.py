"""Two runs beside each other: what B has learnt, taken and sent, against A."""
from __future__ import annotations

from . import compare, units
from .run import Run
from .table import Column, Row, Table, name


def _sum(run: Run, column: str) -> float | None:
    return float(run.epochs[column].sum()) if column in run.epochs and len(run.epochs) else None


def _best(run: Run) -> float | None:
    accuracy = run.epochs["test_accuracy"].dropna() if "test_accuracy" in run.epochs else []
    return float(accuracy.max()) if len(accuracy) else None


def _until(run: Run, accuracy: float | None, column: str) -> float | None:
    """The column's sum over the epochs until this test accuracy was reached for the first time."""
    if accuracy is None or column not in run.epochs:
        return None
    reached = run.epochs["test_accuracy"] >= accuracy
    if not reached.any():
        return None
    return float(run.epochs[column].iloc[:int(reached.to_numpy().argmax()) + 1].sum())


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _signed(value: float | None) -> str:
    return ("+" if units.is_number(value) and value > 0 else "") + units.digits(value)  # type: ignore[operator]


def compared_table(a: Run, b: Run) -> Table:
    best = [_best(run) for run in (a, b)]
    common = min(best) if None not in best else None  # type: ignore[type-var]
    rows: list[Row] = []

    def add(quantity: str, values: list[float | None]) -> None:
        one, other = values
        if not units.is_number(one) and not units.is_number(other):
            return
        both = units.is_number(one) and units.is_number(other)
        rows.append({
            "quantity": quantity, "a": one, "b": other,
            "difference": other - one if both else None,  # type: ignore[operator]
            "ratio": other / one if both and one else None  # type: ignore[operator]
        })

    runs = (a, b)
    add("epochs", [float(len(run.epochs)) for run in runs])
    for title, column in (("training loss", "train_loss"), ("test loss", "test_loss")):
        add(f"{title}, last epoch", [run.last(column) if run.has_one_model else None for run in runs])
    add("test accuracy, last epoch, %", [_scaled(run.last("test_accuracy"), 100) for run in runs])
    for views in sorted({run.views for run in runs if run.views}):
        add(f"test accuracy over views ({views}), %",
            [_scaled(run.augmented_accuracy if run.views == views else None, 100) for run in runs])
    add("test accuracy, best epoch, %", [_scaled(value, 100) for value in best])
    for title, column in (("epoch, s", "epoch_s"), ("  compute, s", "compute_s"), ("  exposed communication, s", "exposed_comm_s"),
                          ("  data, s", "data_s"), ("  other, s", "other_s"), ("communication, s", "comm_s")):
        add(title, [run.time(column) for run in runs])
    add("images/s", [run.images_per_s for run in runs])
    add("sent in an epoch by all ranks, MB", [_scaled(run.time("sent_bytes"), 1e-6) for run in runs])
    add("all epochs, s", [_sum(run, "epoch_s") for run in runs])
    add("sent in all epochs, MB", [_scaled(_sum(run, "sent_bytes"), 1e-6) for run in runs])
    if common is not None:
        at = f"until {100 * common:.1f} % test accuracy"
        add(f"{at}, s", [_until(run, common, "epoch_s") for run in runs])
        add(f"{at}, sent MB", [_scaled(_until(run, common, "sent_bytes"), 1e-6) for run in runs])
    return Table("runs_compared", f"A: {a.label}, against B: {b.label}", [
        name("quantity", "quantity"), Column("a", "A", units.size), Column("b", "B", units.size), Column("difference", "B - A", _signed),
        Column("ratio", "B / A")
    ], rows, ["Times and bytes of an epoch are those of the typical one; evaluation is not in them. The accuracy until which "
              "time and bytes are counted is the best that both have reached."])


def options_table(a: Run, b: Run) -> Table:
    """The options and circumstances that differ, a row each."""
    names, (of_a, of_b) = compare.differences([a, b])
    rows: list[Row] = [{"option": option, "a": of_a.get(option), "b": of_b.get(option)} for option in names]
    notes = [] if rows else ["The runs have the same options."]
    return Table("differences_compared", "What they differ in", [name("option", "option"), name("a", "A"), name("b", "B")],
                 rows, notes)
