"""Time and bytes to an accuracy, over each link (reach.py)."""
from __future__ import annotations

import statistics

from . import compare, reach, step_times, units
from .peers import Peer
from .run import Run
from .table import Column, Row, Table, count, name

JOINED = (
    "What an exchange does to learning does not depend on the link, but with auto, which trains over each. So each training ran "
    "once, and the times of its steps come from runs over the links with the same model, ranks, batch, precision and exchange; "
    "the two are joined here, epoch by epoch: the seconds of an epoch are its steps x (the time of a step without exposed "
    "communication + exposed communication of an exchange x exchanges a step), the former two as the other run took them in its "
    "epoch at the same share of the run (so both may have different numbers of epochs; what its first epoch computes besides "
    "does not count), the exchanges as the training made them. Evaluation is not counted. Link runs, their steps: how many stand "
    "behind a row. The times of rounds are those of rounds without an outer optimiser, also where the training had one.")


def reach_tables(runs: list[Run], asked: reach.Asked = reach.Asked()) -> list[Table]:
    tables = []
    for number, found in enumerate(reach.reaches(runs, asked.curves), 1):
        tables.append(_accuracies(found, number, asked))
        tables += [_times(found, number, asked)] if found.links else []
    with_times = [table for table in tables if table.key.startswith("reach_times")]
    for table in with_times[:1]:
        table.notes.insert(0, JOINED)
    return tables


def _accuracies(found: reach.Reach, number: int, asked: reach.Asked) -> Table:
    marks, rows = found.marks(asked.accuracy), []
    for curve in found.curves:
        row: Row = {
            "exchange": curve.exchange, "runs": len(curve.runs), "train_loss": curve.train_loss,
            "test_accuracy": curve.accuracy[-1],
            "spread": curve.spread[-1] if len(curve.runs) > 1 else None, "sent_mb": curve.sent_mb[-1],
            "of_bytes": found.fp32.sent_mb[-1] / curve.sent_mb[-1] if curve.sent_mb[-1] else None,
            "revisions": compare.some(curve.revisions)
        }
        if found.equal is not None:
            row["is_equal"] = "yes" if curve.accuracy[-1] >= found.equal else "no"
        rows.append(row | {f"mb_{i}": curve.mb_to(mark) for i, mark in enumerate(marks, 1)})
    columns = [
        name("exchange", "exchange"),
        count("runs", "seeds", True),
        Column("train_loss", "train loss"),
        Column("test_accuracy", "test acc., %", units.percent),
        Column("spread", "std. dev.", units.percent, may_fold=True),
        *([name("is_equal", "equal")] if found.equal is not None else []),
        Column("sent_mb", "a rank puts on the wire, MB" if found.is_on_wire else "a rank sends, MB"),
        Column("of_bytes", "times fewer"),
        *(Column(f"mb_{i}", f"MB to {units.percent(mark)} %") for i, mark in enumerate(marks, 1)),
        name("revisions", "dptrain", True)
    ]
    notes = [
        "Means over the seeds; std. dev.: of their accuracies, in points. H: steps between two exchanges; outer: rate and "
        "momentum of the outer optimiser; dptrain: the revisions that trained. Times fewer: bytes than fp32 at every step. A dash: it is not reached." +
        (" Bytes are those on the wire, with headers and acknowledgements." if found.is_on_wire else ""),
        "What counts as equal to fp32 is not known, because fp32 has one seed." if found.equal is None else
        f"Equal, after the same steps: not below fp32 by more than {reach.SPREADS:g} standard deviations of fp32's seeds (or "
        f"of chance on its test images, where that is more), that is at least {units.percent(found.equal)} %. This asks nothing of an exchange that ends above fp32, and it rests on "
        f"the deviation of {len(found.fp32.runs)} seeds, which is not known well."
    ]
    unlike = [curve.exchange for curve in found.curves if curve.seeds_are != found.fp32.seeds_are]
    if unlike:
        notes.append(f"Of other seeds than fp32: {compare.some(unlike)}; part of what differs may be the seeds.")
    if not found.links:
        notes.append("No run has measured the steps over links (between hosts, in a lab, or with --throttle), so there are no times.")
    return Table(f"reach_{number}", f"Bytes to an accuracy: {found.title}", columns, rows, notes)


def _times(found: reach.Reach, number: int, asked: reach.Asked) -> Table:
    marks = found.marks(asked.accuracy)
    alone_s = statistics.median(found.alone_s) if found.alone_s else None
    peers = reach.peers_of(found, asked.peers)
    rows: list[Row] = []

    def to_marks(curve: reach.Curve, step_s: list[float]) -> Row:
        row: Row = {}
        for i, mark in enumerate(marks, 1):
            row[f"seconds_{i}"] = curve.seconds_to(mark, step_s)
            row[f"least_{i}"], row[f"most_{i}"] = curve.seconds_of_seeds(mark, step_s)
        return row

    for link in found.links:
        for curve in found.curves:
            if link not in curve.step_s:
                continue
            step_s = statistics.median(curve.step_s[link])
            then = found.fp32_after(curve.after_epochs(curve.step_s[link])[-1], link) if curve is not found.fp32 else None
            rows.append({
                "exchange": curve.exchange, "link": link, "step_s": step_s,
                "times_alone": step_s / alone_s if alone_s else None,
                "mb_a_step": curve.sent_mb[-1] / sum(curve.steps), "fp32_then": then[0] if then else None,
                "at_equal_time": found.at_equal_time(curve, link), "link_runs": len(curve.measured[link].runs),
                "link_steps": curve.measured[link].steps
            } | to_marks(curve, curve.step_s[link]))
        for peer in peers:
            if peer.link == link:
                rows.append({
                    "exchange": f"{peer.program} ({_of_curve(peer)})",
                    "link": link, "step_s": peer.step_s, "mb_a_step": peer.sent_mb,
                    "times_alone": peer.step_s / peer.compute_s if peer.compute_s else None
                } | (to_marks(found.fp32, [peer.step_s] * len(found.fp32.steps)) if peer.has_fp32_curve else {}))
    columns = [
        name("exchange", "exchange"),
        name("link", "link", True),
        Column("step_s", "s a step"),
        Column("times_alone", "x without a network", may_fold=True),
        Column("mb_a_step", "MB a step"),
    ]
    for i, mark in enumerate(marks, 1):
        columns += [Column(f"seconds_{i}", f"s to {units.percent(mark)} %")]
        if any(len(curve.runs) > 1 for curve in found.curves):
            columns += [Column(f"least_{i}", "least"), Column(f"most_{i}", "most")]
    if found.equal is not None:
        columns += [name("at_equal_time", "at equal time"), Column("fp32_then", "fp32 then, %", units.percent)]
    columns += [count("link_runs", "link runs", True), count("link_steps", "their steps", True)]
    return Table(f"reach_times_{number}", f"Time to an accuracy: {found.title}", columns, rows,
                 [*_notes(found, marks, alone_s), *_of_peers(peers, found.links)])


def _of_curve(peer: Peer) -> str:
    return f"fp32's curve, {peer.program.split()[0]}'s step time" if peer.has_fp32_curve else "its curve was not run"


def _notes(found: reach.Reach, marks: list[float], alone_s: float | None) -> list[str]:
    ways = {"lab": "lab: the links between the hosts of a lab (experiments/dplab) are that slow, and carry TCP",
            "throttled": "throttled: --throttle lets a rank send no faster, mostly through the memory of one host"}
    used = [text for way, text in ways.items() if any(link.endswith(way) for link in found.links)]
    used += ["about: as runs between hosts measured it, to 1, 2 or 5 times a power of ten"] * any(
        link.startswith("about") for link in found.links)
    devices = {run.devices for curve in found.curves for measured in curve.measured.values() for run in measured.runs}
    notes = [f"S a step: the median over the epochs. Link, {'; '.join(used)}. The ranks of the link runs compute on: "
             f"{compare.some(sorted(devices))}."]
    unlike = sorted({name for curve in found.curves for measured in curve.measured.values()
                     for name in compare.differences(measured.runs)[0] if name in step_times.SLOWER_OR_FASTER})
    if unlike:
        notes.append(f"Some link runs of the same exchange and link differ in {compare.some(unlike)}; the median of all is shown.")
    if alone_s is None:
        notes.append("No run with --exchange off tells what a step takes without a network.")
    else:
        ends = [(mark, found.fp32.seconds_to(mark, [alone_s] * len(found.fp32.steps))) for mark in marks]
        said = " and to ".join(f"{units.percent(mark)} % after {units.digits(end)} s" for mark, end in ends if end is not None)
        notes.append(f"Without a network (--exchange off) a step takes {units.digits(alone_s)} s" +
                     (f"; fp32 would come to {said}." if said else "."))
    if found.equal is not None:
        notes.append(
            "Least, most: over the seeds; no most if one of them does not come to it. At equal time: how the accuracy at the "
            f"end lies to fp32's after the same time over this link; above and below: by more than {reach.SPREADS:g} standard "
            "deviations that fp32's seeds have then. fp32 is then in the middle of its schedule; a shorter one could bring it "
            "further. Before the end of its first epoch it counts with that epoch's accuracy.")
    return notes


def _of_peers(peers: list[Peer], links: list[str]) -> list[str]:
    if not peers:
        return []
    left_out = compare.some(sorted({peer.link for peer in peers if peer.link not in links}))
    return [
        f"Programs in brackets: steps that were measured in the same way ({compare.some(peer.machine for peer in peers)}; "
        "--peers). x without a network: the step to its own computation. One that computes what fp32 at every step computes "
        "has fp32's accuracies; those of the others were not run, so they have no times to an accuracy." +
        (f" Not shown: steps over {left_out}, because no link run has such a link." if left_out else "")
    ]
