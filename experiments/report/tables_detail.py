"""Tables about one run: its ranks, its buckets, and the tensors that waited longest."""
from __future__ import annotations

from . import units
from .run import Run
from .table import Column, Row, Table, count, epoch, name

RANK_TIMES = ("compute_s", "data_s", "exposed_comm_s", "comm_s", "peer_wait_s", "encode_s", "decode_s", "wire_s")
BUCKET_VALUES = ("encode_s", "wire_s", "decode_s", "peer_wait_s", "relative_error", "delivered_relative_error",
                 "residual_norm", "residual_growth", "residual_age", "saturation")


def ranks_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    for run in runs:
        ranks = run.of_typical(run.ranks)
        if ranks is None or not run.exchanges or "compute_s" not in ranks:
            continue
        mean = float(ranks["compute_s"].mean())
        for _, rank in ranks.iterrows():
            host = int(rank.get("host", -1))
            rows.append({
                "run": run.label, "rank": rank["rank"], "host": run.hosts[host] if 0 <= host < len(run.hosts) else None,
                **{
                    key: rank.get(key) for key in RANK_TIMES
                }, "against_mean": rank["compute_s"] / mean - 1 if mean else None,
                "sent_mb": rank.get("sent_bytes", float("nan")) / 1e6,
                "received_mb": rank.get("received_bytes", float("nan")) / 1e6
            })
    if not rows:
        return None
    columns = [
        name("run", "run", True),
        count("rank", "rank"),
        name("host", "host", True),
        Column("compute_s", "compute"),
        Column("against_mean", "to mean, %", signed_percent),
        Column("data_s", "data"),
        Column("exposed_comm_s", "exposed comm"),
        Column("comm_s", "comm"),
        Column("peer_wait_s", "peer wait"),
        Column("encode_s", "encode"),
        Column("decode_s", "decode"),
        Column("wire_s", "wire"),
        Column("sent_mb", "sent, MB"),
        Column("received_mb", "received, MB")
    ]
    return Table("ranks", "Ranks, in the typical epoch, s", columns, rows, [
        "To mean: this rank's computation against the mean of all ranks. A slow rank computes longest and has the least "
        "peer wait, because the others wait for it."
    ])


def signed_percent(value: float | None) -> str:
    return f"{100 * round(value, 3) + 0.0:+.1f}" if units.is_number(value) else units.DASH  # type: ignore[arg-type]


def slowest_rank(run: Run) -> tuple[int, str, float] | None:
    """(rank, host, how much longer than the mean it computes), if the log tells ranks apart."""
    ranks = run.of_typical(run.ranks)
    if ranks is None or len(ranks) < 2 or "compute_s" not in ranks or not ranks["compute_s"].mean():
        return None
    row = ranks.loc[ranks["compute_s"].idxmax()]
    rank, host = int(row["rank"]), int(row.get("host", -1))
    return rank, run.hosts[host] if 0 <= host < len(run.hosts) else "", row["compute_s"] / ranks["compute_s"].mean() - 1


def buckets_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    for run in runs:
        if run.buckets is None or not len(run.buckets) or not run.exchanges:
            continue
        last = run.epochs[run.epochs["epoch"] == run.buckets["epoch"].max()]
        k = run.steps_in(last.iloc[-1]) if len(last) else None
        topologies = [str(topology) for topology in run.attributes.get("topology_names", [])]
        for _, bucket in run.buckets[run.buckets["epoch"] == run.buckets["epoch"].max()].iterrows():
            elements, sent = bucket.get("elements"), bucket.get("sent_bytes")
            fp32 = 2 * (run.world_size - 1) * elements * 4 * k if elements and k else None
            rows.append({
                "run": run.label, "bucket": bucket["bucket"], "elements": elements,
                "codec": _of(run.codec_names, bucket.get("codec")), "topology": _of(topologies, bucket.get("topology")),
                "sent_mb": None if sent is None else sent / 1e6,
                "of_fp32": sent / fp32 if sent is not None and fp32 else None, **{
                    key: bucket.get(key) for key in BUCKET_VALUES
                }
            })
    if not rows:
        return None
    columns = [
        name("run", "run", True),
        count("bucket", "bucket"),
        count("elements", "elements"),
        name("codec", "codec"),
        name("topology", "topology", True),
        Column("sent_mb", "sent, MB"),
        Column("of_fp32", "of fp32, %", units.percent),
        Column("encode_s", "encode, s"),
        Column("wire_s", "wire, s"),
        Column("decode_s", "decode, s"),
        Column("peer_wait_s", "peer wait, s"),
        Column("relative_error", "encoder error, %", units.percent),
        Column("delivered_relative_error", "error of the sum, %", units.percent),
        Column("residual_norm", "residual"),
        Column("residual_growth", "of gradient", units.fixed(2)),
        Column("residual_age", "waits, steps"),
        Column("saturation", "saturated, %", units.percent)
    ]
    return Table("buckets", "Buckets, in the last epoch", columns, rows, [
        "Sent: by all ranks in the epoch; of fp32: against an uncompressed ring. Encoder error: what encoders dropped, "
        "relative to what they were given. Error of the sum: the delivered sum of one step against the exact one, on a "
        "sample. Residual: norm of what waits to be sent; of gradient: over the norm of one step's gradient; waits: the mean "
        "number of steps, if those are independent (both on a sample). Saturated: share of the values beyond the largest that their "
        "codec can send."
    ])


MOST_TENSORS = 8  # of a run


def tensors_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = []
    for run in runs:
        if run.tensors is None or not len(run.tensors):
            continue
        names = [str(tensor) for tensor in run.attributes.get("tensor_names", [])]
        waits = run.tensors.sort_values("longest_wait", kind="stable", ascending=False).drop_duplicates("tensor")
        for _, tensor in waits.head(MOST_TENSORS).iterrows():
            rows.append({
                "run": run.label, "tensor": _of(names, tensor["tensor"]), "elements": int(tensor["elements"]),
                "longest_wait": int(tensor["longest_wait"]), "epoch": int(tensor["epoch"])
            })
    if not rows:
        return None
    columns = [
        name("run", "run", True),
        name("tensor", "tensor"),
        count("elements", "elements"),
        count("longest_wait", "exchanges"),
        epoch("epoch", "in epoch")
    ]
    return Table("tensors", "Tensors that waited longest", columns, rows, [
        "Exchanges in a row that delivered nothing of the tensor: its values were too small for the codec, and wait in "
        "residuals. Where these are many, --compress-exclude sends the tensor in fp32, and blend= of ecq gives segments of small "
        f"values a finer step. At most {MOST_TENSORS} tensors a run; the log has the others."
    ])


def _of(names: list[str], index: float | None) -> str | None:
    return names[int(index)] if index is not None and 0 <= index < len(names) else None
