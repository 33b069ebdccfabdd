"""One sentence per run: what slows it down and what would help, if its figures show it."""
from __future__ import annotations

from .run import Run
from .table import Row, Table, name
from .tables_detail import slowest_rank
from .tables_network import volume_bytes
from .units import digits

# Codecs and their bits per value, from the finest.
CODEC_BITS = (("fp16", 16.0), ("q8", 8.0), ("q4", 4.0), ("q2", 2.0), ("topk:ratio=0.01", 0.4))
LITTLE, MUCH, SLOW = 0.05, 0.5, 0.1


def advice(run: Run) -> str | None:
    """None if the figures show nothing."""
    epoch, exposed, comm = run.epoch_s, run.time("exposed_comm_s"), run.time("comm_s")
    if not epoch or exposed is None or comm is None:
        return None
    data = run.time("data_s") or 0.0
    if data > LITTLE * epoch and data > exposed:
        return (
            f"Training waits for images {_percent(data / epoch)} of the time; more --loader-threads or a faster disk may "
            "help.")
    if not run.exchanges:
        return None
    stands = f"Exposed communication is {_percent(exposed / epoch)} of the epoch"
    if exposed <= LITTLE * epoch:
        return f"{stands}: nearly all of the exchange runs behind computation, so sending less would gain nothing."
    wait = run.time("peer_wait_s") or 0.0
    if wait > MUCH * comm:
        slow = slowest_rank(run)
        who = "; over the whole epoch none of them is much slower than the others"
        who += f". The ranks {shared}" if (shared := _shared_cores(run)) else ""
        if slow and slow[2] > SLOW:
            who = (f": rank {slow[0]}{f' ({slow[1]})' if slow[1] else ''} computes {_percent(slow[2])} longer than the "
                   "mean; give it less to do or more cores")
        return f"{stands}. {_percent(wait / comm)} of the communication is waiting for ranks that have not begun{who}."
    if run.config.get("overlap") == "off":
        return f"{stands}, and nothing is sent while backward computes; use --overlap on."
    coding = (run.time("encode_s") or 0.0) + (run.time("decode_s") or 0.0)
    if coding > MUCH * comm:
        return (f"{stands}. {_percent(coding / comm)} of the communication is encoding and decoding; a simpler codec may be "
                "faster here.")
    if run.topology == "ps" and run.world_size > 2:
        return (
            f"{stands}. Everything goes through the link of rank 0 ({run.world_size - 1} times the gradient each way); "
            f"with --topology ring each link carries {digits(2 * (run.world_size - 1) / run.world_size)} times the "
            "gradient.")
    return f"{stands}. {_would_hide(run)}"


def _would_hide(run: Run) -> str:
    """The codec whose bytes the wire could carry while backward runs, at the rate that was reached."""
    wire, backward, volume = run.time("wire_s"), run.time("backward_s"), volume_bytes(run)
    sent, k = run.time("sent_bytes"), run.steps_per_epoch
    if not wire or not backward or not volume or not sent or not k:
        return "Sending less would help."
    bits = 32 * sent / run.world_size / (volume * k)
    if wire <= backward:
        shared = _shared_cores(run)
        return (f"The wire takes {digits(wire)} s an epoch and backward {digits(backward)} s, "
                + (f"but ranks {shared}, so no core is free for the exchange while backward computes." if shared else
                   "so more of the exchange could run behind backward; try smaller buckets (--bucket-mb), which are sent "
                   "earlier."))
    for codec, needed in CODEC_BITS:
        if needed < bits and wire * needed / bits <= backward:
            return (
                f"The wire takes {digits(wire)} s at {digits(bits)} bits a value. With {codec} ({digits(needed)} bits) it would "
                f"take about {digits(wire * needed / bits)} s, which fits behind the {digits(backward)} s of backward.")
    return (
        f"The wire takes {digits(wire)} s at {digits(bits)} bits a value, and even with topk:ratio=0.01 it would not "
        f"fit behind the {digits(backward)} s of backward; a larger batch needs fewer exchanges.")


def _shared_cores(run: Run) -> str:
    """A clause if a rank has more threads than cores."""
    cores, threads = run.attributes.get("cores_per_rank"), run.attributes.get("threads_per_rank")
    if not cores or not threads or threads <= cores:
        return ""
    return f"share cores (threads_per_rank {threads:g}, cores_per_rank {cores:g})"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def advice_table(runs: list[Run]) -> Table | None:
    rows: list[Row] = [{"run": run.label, "advice": text} for run in runs if (text := advice(run)) is not None]
    return Table("advice", "What to do",
                 [name("run", "run"), name("advice", "what the figures say")], rows, is_prose=True) if rows else None
