"""What a run predicted of its steps before the first one, beside what it measured."""
from __future__ import annotations

import re

from . import units
from .run import Run
from .table import Column, Row, Table, count, name


def prediction_row(run: Run) -> Row | None:
    """None if the log has no prediction, or nothing to compare it with."""
    predicted, waits = run.given("predicted_step_s"), run.given("predicted_exposed_comm_s")
    if not predicted or waits is None or _changes_its_exchange(run):
        return None
    step, exposed = _measured(run)
    if not step or exposed is None:
        return None
    return {
        "run": run.label, "ranks": run.world_size, "link": run.link_name, "codec": run.codec, "topology": run.topology,
        "predicted_ms": 1e3 * predicted, "step_ms": 1e3 * step, "error": predicted / step - 1,
        "predicted_waits_ms": 1e3 * waits, "waits_ms": 1e3 * exposed
    }


def _changes_its_exchange(run: Run) -> bool:
    """Whether rounds begin or change after the first epoch, which alone is predicted."""
    later = re.search(r"\bfrom=(\d+)", run.sync_every)
    chosen = str(run.attributes.get("round_steps", ""))
    return later is not None and later[1] != "1" or len(set(chosen.split(","))) > 1


def _measured(run: Run) -> tuple[float | None, float | None]:
    """A step's time and exposed communication, as means over ranks and steps, which is what a prediction is: in the
    typical epoch, or in all epochs if the codec spends its bits by a plan of the run."""
    if run.typical is None:
        return None, None
    epochs = run.epochs.to_dict("records") if "bits=" in run.config.get("compress", "") else [run.typical]
    steps = sum(run.optimizer_steps_in(epoch) or 0 for epoch in epochs)
    if not steps or not all("exposed_comm_s" in epoch for epoch in epochs):
        return None, None
    return sum(epoch["epoch_s"] for epoch in epochs) / steps, sum(epoch["exposed_comm_s"] for epoch in epochs) / steps


def prediction_table(runs: list[Run]) -> Table | None:
    """None if no run has predicted its steps."""
    rows = [row for row in map(prediction_row, runs) if row is not None]
    if not rows:
        return None
    errors = sorted(abs(row["error"]) for row in rows)
    columns = [
        name("run", "run"),
        count("ranks", "P", True),
        name("link", "link", True),
        name("codec", "codec", True),
        name("topology", "topology", True),
        Column("predicted_ms", "predicted step, ms"),
        Column("step_ms", "measured, ms"),
        Column("error", "off by, %", units.percent),
        Column("predicted_waits_ms", "predicted waits, ms"),
        Column("waits_ms", "measured, ms")
    ]
    notes = [
        "Predicted: by the run itself before its first step, from a few steps without an exchange, the speed of the codec "
        "and the measured link. Measured: in the typical epoch, or with bits= in all epochs; both are means over ranks and "
        "steps. Waits: exposed communication. Runs whose rounds begin later than the run are not here."
    ]
    if len(rows) > 4:
        within = sum(error <= 0.05 for error in errors)
        notes.append(f"Off by {100 * errors[len(errors) // 2]:.1f} % in the median; {within} of {len(rows)} are within 5 %.")
    return Table("prediction", "Prediction", columns, rows, notes)
