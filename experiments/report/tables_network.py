"""The network: the bandwidth reached, compared with the link's rate, and link rate x codec with the least possible
time."""
from __future__ import annotations

import statistics

from . import compare, units
from .run import Run
from .table import Column, Row, Table, count, name, size


def volume_bytes(run: Run) -> float | None:
    """The bytes that a rank sends for one all-reduce by an uncompressed ring: 2(P-1)/P x gradient bytes in fp32."""
    p = run.world_size
    return None if run.gradient_bytes is None else 2 * (p - 1) / p * run.gradient_bytes


def bandwidth_row(run: Run) -> Row | None:
    """busbw and the rate on the wire, in the typical epoch; keys as in bandwidth_table."""
    comm, k = run.time("comm_s"), run.steps_per_epoch
    if not run.exchanges or not comm or not k:
        return None
    volume = volume_bytes(run)
    on_wire = comm - (run.time("peer_wait_s") or 0.0)
    sent = run.time("sent_bytes")
    a_rank = None if sent is None else sent / run.world_size
    row: Row = {
        "run": run.label, "number": run.number, "ranks": run.world_size, "codec": run.codec,
        "topology": run.topology, "link": run.link_name, "reduces": k, "epoch_mb": None if volume is None else k * volume / 1e6, "epoch_comm_s": comm,
        "one_mb": None if volume is None else volume / 1e6, "one_comm_ms": 1e3 * comm / k,
        "busbw": None if volume is None else 8e-6 * k * volume / comm,
        "sent_mb": None if a_rank is None else a_rank / 1e6,
        "wire_rate": 8e-6 * run.link_bytes / on_wire if run.link_bytes and on_wire > 0 else None,
        "link_rate": None if run.link_bits is None else run.link_bits / 1e6
    }
    for key, rate in (("bus_utilisation", "busbw"), ("wire_utilisation", "wire_rate")):
        row[key] = row[rate] / row["link_rate"] if row[rate] is not None and row["link_rate"] else None
    row["median_one"] = _median_of_steps(run, volume)
    return row


def _median_of_steps(run: Run, volume: float | None) -> float | None:
    """busbw in Mbit/s of the median logged all-reduce (--log-steps), by rank 0's times."""
    if run.steps is None or volume is None or "comm_s" not in run.steps or not len(run.steps):
        return None
    median = float(run.steps["comm_s"].median())
    return 8e-6 * volume / median if median > 0 else None


def bandwidth_table(runs: list[Run]) -> Table | None:
    rows = [row for row in map(bandwidth_row, runs) if row is not None]
    if not rows:
        return None
    columns = [
        name("run", "run"),
        count("ranks", "P", True),
        count("reduces", "K", True),
        Column("epoch_mb", "epoch MB", may_fold=True),
        Column("epoch_comm_s", "epoch comm, s"),
        Column("one_mb", "all-reduce MB", may_fold=True),
        Column("one_comm_ms", "all-reduce, ms"),
        Column("busbw", "busbw, Mbit/s"),
        Column("median_one", "median busbw", may_fold=True),
        Column("bus_utilisation", "busbw of link, %", units.percent),
        Column("sent_mb", "sent a rank, MB"),
        Column("wire_rate", "busiest, Mbit/s"),
        Column("link_rate", "link, Mbit/s", may_fold=True),
        Column("wire_utilisation", "busiest of link, %", units.percent)
    ]
    if all(row["median_one"] is None for row in rows):
        columns = [column for column in columns if column.key != "median_one"]
    if all(row["link_rate"] is None for row in rows):
        columns = [
            column for column in columns if column.key not in ("bus_utilisation", "link_rate", "wire_utilisation")
        ]
    notes = [
        "One all-reduce of an uncompressed ring moves v = 2(P-1)/P x gradient bytes in fp32 over each link. An epoch has K "
        "of them, one a step, and communicates for a time t (comm: at least one bucket is in flight). busbw = K v / t = v / "
        "(t / K): the rate is the same for an epoch and for one all-reduce. Dividing one all-reduce's v by an epoch's t would "
        "give K times too little. Where gradients are compressed, busbw can exceed the link's rate. Busiest: what the busiest "
        "rank really sent or received / (comm - peer wait)."
    ]
    if any(run.exchanges and run.is_shared for run in runs):
        notes.append("On a shared link busiest is what all ranks sent, since they take turns.")
    if any(row["median_one"] is not None for row in rows):
        notes.append(
            "Median busbw: that of the median all-reduce among the steps in the log (--log-steps), by rank 0's times.")
    notes += uncertain_notes(runs)
    lacking = [run.label for run in runs if run.exchanges and run.link_bits is None]
    if lacking:
        notes += compare.because({"The log of {} has no rate of the link (link_bytes_per_s, --throttle).": lacking})
    if any(run.throttle_bits for run in runs):
        notes.append("--throttle counts the bytes of frames, too: payload can reach 95.6 % of its rate.")
    return Table("bandwidth", "Bandwidth", columns, rows, notes)


def uncertain_notes(runs: list[Run]) -> list[str]:
    """Which runs' links have a rate that did not become steady when it was measured."""
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if run.uncertain_share:
            text = (f"The rate of the link of {{}} was measured and is uncertain by {100 * run.uncertain_share:.0f} %; so are "
                    "shares of it.")
            reasons.setdefault(text, []).append(run.label)
    return compare.because(reasons)


def minimum_s(run: Run) -> tuple[float | None, float | None]:
    """(time the link needs for its bytes, least time of an epoch), s; None without the link's rate.

    Least time: max(computation of the slowest rank, wire) + the latency of one exchange per step, as far as it is
    known.
    """
    rows = run.of_typical(run.ranks)
    compute = float(rows["compute_s"].max()) if rows is not None and "compute_s" in rows else run.time("compute_s")
    if run.link_bits is None or run.link_bytes is None or compute is None:
        return None, None
    wire = 8 * run.link_bytes / run.link_bits
    return wire, max(compute, wire) + (run.steps_per_epoch or 0) * (run.hops or 0.0) * (run.latency_s or 0.0)


def network_rows(runs: list[Run]) -> list[Row]:
    rows: list[Row] = []
    for run in runs:
        if not run.exchanges or not run.epoch_s:
            continue
        wire, least = minimum_s(run)
        rows.append({
            "run": run.label, "number": run.number, "link": run.link_name, "link_bits": run.link_bits, "codec": run.codec,
            "topology": run.topology, "ranks": run.world_size, "batch": run.batch, "epoch_s": run.epoch_s,
            "compute_s": run.time("compute_s"), "exposed_comm_s": run.time("exposed_comm_s"), "hops": run.hops, "wire_s": wire,
            "least_s": least, "over": run.epoch_s / least if least else None, "test_accuracy": run.last("test_accuracy")
        })
    rows.sort(key=lambda row: (row["link_bits"] or 0.0, row["link"], row["topology"], row["epoch_s"]))
    return rows


def network_tables(runs: list[Run]) -> list[Table]:
    rows = network_rows(runs)
    if not rows:
        return []
    columns = [
        name("link", "link", True),
        name("codec", "codec", True),
        name("topology", "topology", True),
        count("ranks", "ranks", True),
        size("batch", "batch", True),
        Column("epoch_s", "epoch, s"),
        Column("compute_s", "compute, s"),
        Column("exposed_comm_s", "exposed comm, s"),
        Column("hops", "messages in a row", lambda hops: "unknown" if hops is None else units.size(hops), may_fold=True,
               is_count=True),
        Column("wire_s", "wire at least, s"),
        Column("least_s", "epoch at least, s"),
        Column("over", "epoch / least", units.fixed(2)),
        Column("test_accuracy", "test acc., %", units.percent),
        name("run", "run")
    ]
    notes = [
        "Epoch at least: the larger one of the slowest rank's computation and wire at least, plus K x messages in a row x "
        "latency. Wire at least: 8 x bytes that the busiest rank sends or receives / rate of its link; on a shared link "
        "8 x bytes that all ranks send / rate. Unless the link is shared, each rank is taken to have one of its own. Messages "
        "in a row: how many messages of one exchange follow one another. Test acc.: test accuracy after the last epoch."
    ]
    if all(row["least_s"] is None for row in rows):
        columns = [column for column in columns if column.key not in ("hops", "wire_s", "least_s", "over")]
        notes = ["There is no theoretical minimum, because no log has the rate of its link. Test acc.: test accuracy "
                 "after the last epoch."]
    else:
        several = [run for run in runs if run.exchanges and run.epoch_s]
        no_hops = [run.label for run in several if run.hops is None]
        no_latency = [run.label for run in several if run.latency_s is None]
        notes += compare.because({
            text: labels for text, labels in {
                "How many messages of {} follow one another is unknown: the log does not say it (topology_hops), and the "
                "topology is not one of dptrain's. Epoch at least leaves the latency out there.": no_hops,
                "The log of {} has no latency of the link (link_latency_s); it is taken as 0.": no_latency
            }.items() if labels
        })
    return [Table("network", "Link rate x codec x topology", columns, rows, notes), *_matrices(rows)]


def _matrices(rows: list[Row]) -> list[Table]:
    """For each number of ranks and batch size: time per epoch, codecs x links."""
    tables: list[Table] = []
    for (ranks, batch), group in compare.groups(rows, lambda row: (row["ranks"], row["batch"])).items():
        links = list(compare.groups(group, lambda row: row["link"]))
        if len(links) < 2:
            continue
        columns = [name("codec", "codec"), name("topology", "topology", True)]
        columns += [Column(f"link {link}", str(link)) for link in links]
        lines: list[Row] = []
        for (codec, topology), same in compare.groups(group, lambda row: (row["codec"], row["topology"])).items():
            line: Row = {"codec": codec, "topology": topology}
            for link in links:
                times = [row["epoch_s"] for row in same if row["link"] == link]
                if times:
                    line[f"link {link}"] = statistics.median(times)
            lines.append(line)
        tables.append(
            Table(f"link_x_codec_{len(tables) + 1}", f"Time of a typical epoch, s: codec x link ({ranks} ranks, "
                  f"batch {units.size(batch)})", columns, lines))
    return tables
