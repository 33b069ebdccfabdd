"""The network: bandwidth reached against the link's rate, and link rate x codec with the theoretical minimum time."""
from __future__ import annotations

import math

from . import compare, units
from .run import Run
from .table import Column, Row, Table, count, name, size


def volume_bytes(run: Run) -> float | None:
    """What an uncompressed ring would send a rank for one all-reduce: 2(P-1)/P x gradient bytes in fp32."""
    p = run.world_size
    return None if run.gradient_bytes is None else 2 * (p - 1) / p * run.gradient_bytes


def bandwidth_row(run: Run) -> Row | None:
    """busbw and what went over the wire, in the typical epoch; keys as in bandwidth_table."""
    comm, k = run.time("comm_s"), run.steps_per_epoch
    if not run.exchanges or not comm or not k:
        return None
    volume = volume_bytes(run)
    on_wire = comm - (run.time("peer_wait_s") or 0.0)
    sent = run.time("sent_bytes")
    a_rank = None if sent is None else sent / run.world_size
    row: Row = {
        "run": run.label, "ranks": run.world_size, "codec": run.codec, "topology": run.topology, "link": run.link_name,
        "reduces": k, "epoch_mb": None if volume is None else k * volume / 1e6, "epoch_comm_s": comm,
        "one_mb": None if volume is None else volume / 1e6, "one_comm_ms": 1e3 * comm / k,
        "busbw": None if volume is None else 8e-6 * k * volume / comm,
        "sent_mb": None if a_rank is None else a_rank / 1e6,
        "wire_rate": 8e-6 * run.busiest_link_bytes / on_wire if run.busiest_link_bytes and on_wire > 0 else None,
        "link_rate": None if run.link_bits is None else run.link_bits / 1e6
    }
    for key, rate in (("bus_utilisation", "busbw"), ("wire_utilisation", "wire_rate")):
        row[key] = row[rate] / row["link_rate"] if row[rate] is not None and row["link_rate"] else None
    row["median_one"] = _median_of_steps(run, volume)
    return row


def _median_of_steps(run: Run, volume: float | None) -> float | None:
    """Mbit/s of the median logged all-reduce (--log-steps), in busbw's sense; rank 0's times."""
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
        Column("median_one", "median", may_fold=True),
        Column("bus_utilisation", "of link, %", units.percent),
        Column("sent_mb", "sent a rank, MB"),
        Column("wire_rate", "busiest, Mbit/s"),
        Column("link_rate", "link, Mbit/s", may_fold=True),
        Column("wire_utilisation", "of link, %", units.percent)
    ]
    if all(row["median_one"] is None for row in rows):
        columns = [column for column in columns if column.key != "median_one"]
    if all(row["link_rate"] is None for row in rows):
        columns = [
            column for column in columns if column.key not in ("bus_utilisation", "link_rate", "wire_utilisation")
        ]
    notes = [
        "One all-reduce moves v = 2(P-1)/P x gradient bytes in fp32 over each link of an uncompressed ring; an epoch "
        "of K steps moves V = K v and communicates for t (comm: a bucket in flight). busbw = V / t = v / (t / K): per "
        "epoch and per all-reduce it is the same rate, as long as volume and time belong to the same thing; one "
        "all-reduce's v over an epoch's t is too small by K. It may exceed the link when compressed. Busiest: what "
        "the busiest rank really sent or received / (comm - peer wait)."
    ]
    if any(row["median_one"] is not None for row in rows):
        notes.append(
            "Median: busbw of the median all-reduce among the steps that were logged (--log-steps), by rank 0's times.")
    lacking = [run.label for run in runs if run.exchanges and run.link_bits is None]
    if lacking:
        notes += compare.because({"the log has no rate of the link (link_bytes_per_s, --throttle)": lacking})
    if any(run.throttle_bits for run in runs):
        notes.append("A link of --throttle carries frames: 95.6 % of its rate is all that payload can reach.")
    return Table("bandwidth", "Bandwidth", columns, rows, notes)


def latencies(run: Run) -> int:
    """Messages that wait for one another in one exchange: what latency is paid at least."""
    p, hosts = run.world_size, len(set(run.hosts)) or 1
    return {
        "ring": 2 * (p - 1), "direct": 2, "ps": 2, "tree": 2 * math.ceil(math.log2(p)), "hierarchical": 2 * (hosts - 1)
    }.get(run.topology, 2)


def minimum_s(run: Run) -> tuple[float | None, float | None]:
    """(time the link needs for the bytes of the busiest rank, least time of an epoch), s; None without the link's rate.

    Least time: max(computation of the slowest rank, wire) + latency of one exchange a step.
    """
    rows = run.of_typical(run.ranks)
    compute = float(rows["compute_s"].max()) if rows is not None and "compute_s" in rows else run.time("compute_s")
    if run.link_bits is None or run.busiest_link_bytes is None or compute is None:
        return None, None
    wire = 8 * run.busiest_link_bytes / run.link_bits
    return wire, max(compute, wire) + (run.steps_per_epoch or 0) * latencies(run) * (run.latency_s or 0.0)


def network_rows(runs: list[Run]) -> list[Row]:
    rows: list[Row] = []
    for run in runs:
        if not run.exchanges or not run.epoch_s:
            continue
        wire, least = minimum_s(run)
        rows.append({
            "run": run.label, "link": run.link_name, "link_bits": run.link_bits, "codec": run.codec,
            "topology": run.topology, "ranks": run.world_size, "batch": run.batch, "epoch_s": run.epoch_s,
            "compute_s": run.time("compute_s"), "exposed_comm_s": run.time("exposed_comm_s"), "wire_s": wire,
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
        Column("exposed_comm_s", "exposed, s"),
        Column("wire_s", "wire at least, s"),
        Column("least_s", "epoch at least, s"),
        Column("over", "epoch / least", units.fixed(2)),
        Column("test_accuracy", "test, %", units.percent),
        name("run", "run")
    ]
    notes = [
        "Epoch at least = max(computation of the slowest rank, wire at least) + K x messages one after the other x "
        "latency; wire at least = 8 x bytes that the busiest rank sends or receives / link rate. Each rank is taken "
        "to have a link of its own. Test: of the last epoch."
    ]
    if all(row["least_s"] is None for row in rows):
        columns = [column for column in columns if column.key not in ("wire_s", "least_s", "over")]
        notes = ["No theoretical minimum, because no log has the rate of its link. Test: of the last epoch."]
    elif any(run.exchanges and run.latency_s is None for run in runs):
        notes.append("Where the log has no latency of the link (link_latency_s) it is taken as 0.")
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
                times = sorted(row["epoch_s"] for row in same if row["link"] == link)
                if times:
                    line[f"link {link}"] = times[(len(times) - 1) // 2]
            lines.append(line)
        tables.append(
            Table(f"link_x_codec_{len(tables) + 1}", f"Time of a typical epoch, s: codec x link ({ranks} ranks, "
                  f"batch {units.size(batch)})", columns, lines))
    return tables
