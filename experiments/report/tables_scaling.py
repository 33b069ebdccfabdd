"""Scaling: weak and strong speedup and efficiency, batch size x ranks, communication as measured and by T_N -
T_1/N."""
from __future__ import annotations

import math
import statistics
from typing import Any

from . import compare, units
from .run import Run
from .table import Column, Row, Table, count, name, size

MANY = 2
FULL = 1.0005  # an efficiency that is printed as more than 100.0 %
ABOVE = (
    "An efficiency above 100 % ({}) does not mean that the exchange saves time. Single times vary by some per cent, and "
    "T_1 and T_N vary independently; N ranks have N times the caches, and in strong scaling smaller batches each, which "
    "fit into them better; where ranks share one machine, its cores and memory are also shared out differently with one rank "
    "than with N. Repeat both runs before you rely on it.")
STRONG, WEAK = "global_batch", "batch"


def scaling_rows(runs: list[Run]) -> tuple[list[Row], dict[str, list[str]]]:
    """A row per run on several ranks that has a T_1; for the others {why not: labels}."""
    rows: list[Row] = []
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if not run.exchanges or not run.epoch_s:
            continue
        n, t_n = run.world_size, run.epoch_s
        row: Row = {
            "run": run.label, "ranks": n, "batch": run.batch, "global_batch": run.global_batch, "t_n": t_n,
            "number": run.number, "codec": run.codec, "topology": run.topology, "link": run.link_name,
            "link_bits": run.link_bits or 0.0
        }
        why = {}
        for kind, of_batch in (("strong", STRONG), ("weak", WEAK)):
            found = compare.baseline(run, runs, of_batch)
            row[f"{kind}_t_1"] = found.epoch_s
            for label, difference in found.left_out:
                reasons.setdefault(f"{label} is not taken as T_1 of {{}}, because it has {difference}.",
                                   []).append(run.label)
            if found.epoch_s is None:
                why[kind] = found.why_not
                continue
            row[f"{kind}_speedup"] = found.epoch_s / t_n
            row[f"{kind}_efficiency"] = found.epoch_s / t_n / n
        if len(why) == 2 and len(set(why.values())) == 1:
            why = {"strong or weak": why["strong"]}
        for kind, reason in why.items():
            reasons.setdefault(f"There is no {kind} scaling for {{}}, because {reason}.", []).append(run.label)
        if row["strong_t_1"] is not None or row["weak_t_1"] is not None:
            rows.append(row)
    rows.sort(key=lambda row: (row["codec"], row["topology"], row["link_bits"], row["batch"], row["ranks"]))
    return rows, reasons


def scaling_table(runs: list[Run]) -> Table | None:
    rows, reasons = scaling_rows(runs)
    if not rows and not reasons:
        return None
    columns = [
        name("run", "run"),
        count("ranks", "ranks N"),
        size("batch", "batch"),
        count("global_batch", "global batch"),
        Column("t_n", "T_N, s"),
        Column("strong_t_1", "strong T_1, s"),
        Column("strong_speedup", "speedup", units.fixed(2)),
        Column("strong_efficiency", "efficiency, %", units.percent),
        Column("weak_t_1", "weak T_1, s"),
        Column("weak_speedup", "scaled speedup", units.fixed(2)),
        Column("weak_efficiency", "scaled eff., %", units.percent)
    ]
    notes = [
        "T is the time of a typical epoch of the same images. Strong scaling keeps the global batch: speedup S = T_1 / "
        "T_N, efficiency S / N. Weak scaling keeps the batch per rank, so the global batch is N times as large: scaled "
        "speedup S' = (images/s on N) / (images/s on one) = T_1 / T_N, scaled efficiency S' / N; it leaves out that "
        "larger batches may need more epochs. T_1 is the time of a run on one rank, or N x that of N ranks with "
        "--exchange off (each with an N-th of the images). Both runs must have the same model, data, precision, device, "
        "cores and threads per rank."
    ]
    above = [row["run"] for row in rows
             if any((row.get(f"{kind}_efficiency") or 0.0) > FULL for kind in ("strong", "weak"))]
    if above:
        notes.append(ABOVE.replace("{}", compare.some(above)))
    return Table("scaling", "Scaling", columns, rows, (notes if rows else []) + compare.because(reasons))


def batch_tables(runs: list[Run]) -> list[Table]:
    """The classical form, for each codec, topology and link: batch per rank x ranks, time and speedup."""
    timed = [run for run in runs if run.epoch_s]
    alone = [run for run in timed if run.world_size == 1]
    tables: list[Table] = []

    def study(run: Run) -> tuple[Any, ...]:
        return (run.model_name, run.config.get("dataset"), run.samples, run.config.get("precision"))

    together = compare.groups((run for run in timed if run.exchanges), lambda run:
                              (*study(run), run.codec, run.topology, run.link_name))
    if len(together) > MANY:  # one number of ranks and one batch size make no table of their own
        together = {key: group for key, group in together.items()
                    if len({(run.world_size, run.batch) for run in group}) > 1}
    for key in compare.groups(alone, study):
        if not any(other[:4] == key for other in together):
            together[(*key, "", "", "")] = []
    for key, group in together.items():
        own = [run for run in alone if study(run) == key[:4]]
        members = ([run for run in own if any(compare.is_alike(run, other) for other in group)] or own) + group
        sizes = sorted({run.batch for run in members if run.batch is not None})
        ranks = sorted({run.world_size for run in members})
        if len(sizes) < 2 and len(ranks) < 2:
            continue
        rows: list[Row] = []
        for batch in sizes:
            row: Row = {"batch": batch}
            for n in ranks:
                cell = [run for run in members if run.batch == batch and run.world_size == n]
                if cell:
                    t_n = statistics.median(run.epoch_s for run in cell if run.epoch_s is not None)
                    row[f"t_{n}"], row[f"images_{n}"] = t_n, (cell[0].samples or math.nan) / t_n
                    t_1 = compare.baseline(cell[0], runs, WEAK).epoch_s if n > 1 else None
                    row[f"speedup_{n}"] = t_1 / t_n if t_1 else None
            rows.append(row)
        columns = [size("batch", "batch")]
        for n in ranks:
            columns.append(Column(f"t_{n}", f"{n} rank{'s' * (n > 1)}: s"))
            columns.append(Column(f"speedup_{n}", f"{n} ranks: speedup", units.fixed(2)) if n > 1
                           else Column(f"images_{n}", "1 rank: images/s"))
        most = [str(n) for n in ranks if any((row.get(f"speedup_{n}") or 0.0) > n * FULL for row in rows)]
        model, data, samples, precision, codec, topology, link = key
        where = f", {codec} over {topology}, link {link}" if codec else ""
        tables.append(
            Table(f"batch_x_ranks_{len(tables) + 1}", f"Batch size x ranks: {model} on {data}, {precision}{where}",
                  columns, rows, [
                      "Time of a typical epoch, the median of runs that are alike. Speedup: T_1 / T_N at the same batch "
                      "per rank, where a T_1 can be compared (see Scaling)."
                  ] + ([ABOVE.replace("{}", f"a speedup above {compare.some(most)}")] if most else [])))
    return tables


def communication_table(runs: list[Run]) -> Table | None:
    """Computation and communication as measured, beside the classical estimate."""
    rows: list[Row] = []
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if not run.exchanges or not run.epoch_s:
            continue
        found = compare.baseline(run, runs, WEAK)
        if found.epoch_s is None and compare.baseline(run, runs, STRONG).epoch_s is not None:
            found = compare.baseline(run, runs, STRONG)
        if found.epoch_s is None:
            reasons.setdefault(f"There is no estimate for {{}}, because {found.why_not}.", []).append(run.label)
        share = found.epoch_s / run.world_size if found.epoch_s else None
        rows.append({
            "run": run.label, "ranks": run.world_size, "batch": run.batch, "t_n": run.epoch_s,
            "compute_s": run.time("compute_s"), "comm_s": run.time("comm_s"), "exposed": run.time("exposed_comm_s"),
            "t_1": found.epoch_s, "share": share, "estimate": None if share is None else run.epoch_s - share
        })
    if not rows:
        return None
    columns = [
        name("run", "run"),
        count("ranks", "ranks N"),
        size("batch", "batch"),
        Column("t_n", "T_N"),
        Column("compute_s", "compute"),
        Column("comm_s", "comm"),
        Column("exposed", "exposed comm"),
        Column("t_1", "T_1"),
        Column("share", "T_1/N"),
        Column("estimate", "T_N - T_1/N")
    ]
    notes = [
        "Compute, comm and exposed communication are measured.",
        "T_N - T_1/N is the classical estimate of what "
        "communication costs; it is here for comparison with work that measures nothing else.",
        "T_1 is that of the table Scaling.",
        "The estimate contains everything by which N ranks miss the ideal: besides exposed communication also waiting "
        "for slow ranks and, where T_1 is of a single rank, data, the optimizer, which every rank runs in full, and "
        "computation that slows down when ranks share memory. It does not contain communication behind computation, so "
        "comm can be larger than the estimate."
    ]
    if any((row["estimate"] or 0.0) < 0 for row in rows):
        notes.append("An estimate below 0 is an efficiency above 100 %; see Scaling.")
    if all(row["t_1"] is None for row in rows):
        columns, notes = columns[:-3], notes[:1]
    return Table("communication", "Computation and communication of a typical epoch, s", columns, rows,
                 notes + compare.because(reasons))
