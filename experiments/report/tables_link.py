"""The links, as they were set and as they were measured, and the bytes on them that are not gradients."""
from __future__ import annotations

import pandas as pd

from . import units
from .run import Run
from .table import Column, Row, Table, name

# Each kind of bytes and its name in the log.
KINDS = {"gradient": "sent_bytes", "sample": "sample_bytes", "control": "control_bytes"}
# Only where a run has them.
STATISTICS = {"statistics": "statistics_bytes"}


def _yes_or_no(value: bool | None) -> str:
    return units.DASH if value is None else "yes" if value else "no"


def links_table(runs: list[Run]) -> Table | None:
    """None if nothing is known of a link."""
    rows: list[Row] = []
    for run in runs:
        if not run.exchanges or (run.nominal_bits is None and run.measured_bits is None):
            continue
        is_lab = run.nominal_delay_s is not None or run.nominal_loss is not None
        measured_s = run.attributes.get("link_latency_s") or None
        rows.append({
            "run": run.label, "nominal_mbit_per_s": _scaled(run.nominal_bits, 1e-6),
            "nominal_delay_ms": _scaled(run.nominal_delay_s, 1e3), "nominal_loss": run.nominal_loss,
            "nominal_is_shared": run.is_shared if is_lab else None,
            "measured_mbit_per_s": _scaled(run.measured_bits, 1e-6),
            "uncertainty": run.attributes.get("link_uncertainty"), "measured_latency_ms": _scaled(measured_s, 1e3)
        })
    if not rows:
        return None
    columns = [
        name("run", "run"),
        Column("nominal_mbit_per_s", "set to, Mbit/s", may_fold=True),
        Column("nominal_delay_ms", "delay, ms", may_fold=True),
        Column("nominal_loss", "loss, %", lambda loss: units.digits(_scaled(loss, 100)), may_fold=True),
        Column("nominal_is_shared", "shared", _yes_or_no, True, True),
        Column("measured_mbit_per_s", "measured, Mbit/s"),
        Column("uncertainty", "uncertain by, %", units.percent, may_fold=True),
        Column("measured_latency_ms", "measured latency, ms")
    ]
    return Table("links", "Links", columns, rows, [
        "Set to, delay (one way, from host to host), loss and shared (one medium for all hosts): what dplab or --throttle "
        "was asked for; a dash where the log does not say it. Measured: by dptrain at its start, between the ranks; "
        "uncertain by: how far the true rate may be from it."
    ])


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def sent_table(runs: list[Run]) -> Table | None:
    """What all ranks sent in all epochs, and the shares of it that are not gradients."""
    rows: list[Row] = []
    has_statistics = any(_sum(run.epochs, "statistics_bytes") for run in runs)
    kinds = KINDS | (STATISTICS if has_statistics else {})
    for run in runs:
        if not run.exchanges or not len(run.epochs) or "sent_bytes" not in run.epochs:
            continue
        sums = {kind: _sum(run.epochs, column) for kind, column in kinds.items()}
        total = sum(value for value in sums.values() if value is not None)
        rows.append({
            "run": run.label, "codec": run.codec, "all_mb": total / 1e6,
            "wire_mb": float(run.epochs["wire_bytes"].sum()) / 1e6 if run.has_wire_bytes else None,
            **{f"{kind}_mb": _scaled(value, 1e-6) for kind, value in sums.items()},
            **{f"{kind}_share": value / total if value is not None and total else None for kind, value in sums.items()}
        })
    if not rows:
        return None
    columns = [name("run", "run"), name("codec", "codec", True), Column("all_mb", "all, MB")]
    has_wire = any(row["wire_mb"] is not None for row in rows)
    if has_wire:
        columns.append(Column("wire_mb", "on the wire, MB"))
    for kind in kinds:
        columns += [Column(f"{kind}_mb", f"{kind}, MB"), Column(f"{kind}_share", f"{kind}, %", _share)]
    notes = [
        "Bytes that all ranks sent in all epochs. Gradient: the exchange itself. Sample: one step's exact sums, by which "
        "the error of the delivered sum is measured. Control: everything else, such as statistics, hashes, loss sums, "
        "rows of the log and signs of life. Shares are of all bytes."
    ]
    if has_wire:
        notes.append("On the wire: with the headers of TCP, IP and Ethernet and with acknowledgements, counted by the kernel for "
                     "each connection, evaluations included; where ranks of one host share memory, what the same messages would "
                     "take.")
    if has_statistics:
        notes.append("Statistics: mean and deviation over all ranks, for batch normalisation (--sync-bn).")
    if any(row["control_mb"] is None for row in rows):
        notes.append("A dash: the log is of a dptrain that did not count these bytes, so they are in no share.")
    return Table("sent", "What was sent", columns, rows, notes)


def _share(value: float | None) -> str:
    """Percent with three significant digits, because shares can be small."""
    return units.digits(_scaled(value, 100))


def _sum(epochs: pd.DataFrame, column: str) -> float | None:
    return float(epochs[column].sum()) if column in epochs else None
