"""What to do about each run: one imperative, the figures that are its reason, and what it would gain as far as the logs
show it. Nothing where the figures ask for nothing."""
from __future__ import annotations

from dataclasses import dataclass

from . import chance, compare, units
from .run import Run
from .table import Row, Table, name
from .tables_codecs import circumstances, same_work
from .tables_detail import slowest_rank
from .tables_network import volume_bytes
from .units import digits

# Codecs and their bits per value, from the finest. Those that need it have a warm-up.
CODEC_BITS = (("fp16", 16.0), ("q8", 8.0), ("q4", 4.0), ("q2 --compress-warmup 1", 2.0),
              ("topk:ratio=0.01 --compress-warmup 1", 0.4))
LITTLE, MUCH, SLOW = 0.05, 0.5, 0.1


@dataclass
class _Figures:
    """Of the typical epoch, in seconds."""
    epoch: float
    data: float
    exposed: float
    comm: float
    wire: float
    backward: float
    coding: float
    peer_wait: float

    def gain(self, saved: float) -> str:
        """What an epoch would take if that much of it were saved; exposed communication cannot fall below 0."""
        saved = min(saved, self.exposed)
        return f"an epoch would then take about {digits(self.epoch - saved)} s instead of {digits(self.epoch)} s"


def _figures(run: Run) -> _Figures | None:
    epoch, exposed, comm = run.epoch_s, run.time("exposed_comm_s"), run.time("comm_s")
    if not epoch or exposed is None or comm is None:
        return None

    def time(column: str) -> float:
        return run.time(column) or 0.0

    return _Figures(epoch, time("data_s"), exposed, comm, time("wire_s"), time("backward_s"),
                    time("encode_s") + time("decode_s"), time("peer_wait_s"))


def advice(run: Run, runs: list[Run]) -> str | None:
    """The imperative; empty if there is nothing to do; None if the log does not tell. `runs` are all runs of the report."""
    at = _figures(run)
    if at is None:
        return None
    if at.data > LITTLE * at.epoch and at.data > at.exposed:
        return (f"Raise --loader-threads{_now(run, 'loader-threads')}, or put the images on a faster disk: training waits "
                f"for them {_percent(at.data / at.epoch)} of the time, {digits(at.data)} s of an epoch of "
                f"{digits(at.epoch)} s.")
    if not run.exchanges or at.exposed <= LITTLE * at.epoch:
        return ""
    stands = f"exposed communication is {_percent(at.exposed / at.epoch)} of the epoch"
    if at.peer_wait > MUCH * at.comm:
        return _for_late_ranks(run, at, stands)
    if run.config.get("overlap") == "off":
        return (f"Use --overlap on: {stands}, and nothing is sent while backward computes; "
                f"{at.gain(min(at.exposed, at.backward))} at best.")
    return _measured(run, runs, stands) or _for_bytes(run, at, stands)


def _for_late_ranks(run: Run, at: _Figures, stands: str) -> str:
    reason = f"{stands}, and {_percent(at.peer_wait / at.comm)} of the communication is waiting for ranks that have not begun"
    slow = slowest_rank(run)
    if slow and slow[2] > SLOW:
        rank = f"rank {slow[0]}{f' ({slow[1]})' if slow[1] else ''}"
        return (f"Give {rank} more cores, or let its host do nothing else: {reason}; {rank} computes {_percent(slow[2])} "
                "longer than the mean.")
    if shared := _shared_cores(run):
        return f"Start fewer ranks per host, or lower --threads: {reason}, because ranks {shared}."
    return (f"Look at some steps with --trace t.json: {reason}, and over the whole epoch none of them is much slower than the "
            "others, so that it is another rank each time.")


def _measured(run: Run, runs: list[Run], stands: str) -> str:
    """The fastest run that is alike but for the codec, if it is faster and its accuracy is not smaller and different."""
    if run.epoch_s is None:
        return ""
    mine, errors = circumstances(run), chance.standard_errors(runs)
    best: tuple[float, Run, str] | None = None
    for other in runs:
        if (not other.exchanges or not other.epoch_s or other.codec == run.codec or len(other.epochs) != len(run.epochs)
                or other.epoch_s > (1 - LITTLE) * run.epoch_s or circumstances(other) != mine or not same_work(run, other)):
            continue
        theirs, ours = other.last("test_accuracy"), run.last("test_accuracy")
        least = chance.of_difference(errors.get(other.label), errors.get(run.label))
        text = ""
        if theirs is not None and ours is not None and units.is_number(theirs) and units.is_number(ours):
            if least is not None and ours - theirs > least:
                continue
            text = f", and reaches a test accuracy of {units.percent(theirs)} % instead of {units.percent(ours)} %"
            text += "" if least is None else ", which is different" if theirs - ours > least else ", which is not different"
        if best is None or other.epoch_s < best[0]:
            best = other.epoch_s, other, text
    if best is None:
        return ""
    epoch_s, other, text = best
    codec = other.codec.replace(" after ", " --compress-warmup ").removesuffix(" epochs")
    return (f"Use --compress {codec}: {stands}; {other.label}, which differs only in the codec, takes {digits(epoch_s)} s an "
            f"epoch instead of {digits(run.epoch_s)} s{text}.")


def _for_bytes(run: Run, at: _Figures, stands: str) -> str:
    """What makes the exchange itself shorter."""
    bits = _bits(run)
    if at.coding > MUCH * at.comm:
        reason = f"{stands}, and {_percent(at.coding / at.comm)} of the communication is encoding and decoding"
        if bits:
            for codec, needed in (("none", 32.0), *CODEC_BITS[:2]):
                if needed > bits and at.wire * needed / bits <= at.backward:
                    return (f"Try --compress {codec}: {reason}; with {digits(needed)} instead of {digits(bits)} bits a value "
                            f"the wire would take about {digits(at.wire * needed / bits)} s, which fits behind the "
                            f"{digits(at.backward)} s of backward.")
        return f"Give each rank more cores (fewer ranks per host): {reason}."
    if run.topology == "ps" and run.world_size > 2:
        times = 2 * (run.world_size - 1) / run.world_size
        return (f"Use --topology ring: {stands}, and everything goes through the link of rank 0, {run.world_size - 1} times "
                f"the gradient each way; in a ring each link carries {digits(times)} times the gradient, and "
                f"{at.gain(at.wire * (1 - 2 / run.world_size))}.")
    hops = min(at.comm, (run.hops or 0.0) * (run.latency_s or 0.0) * (run.steps_per_epoch or 0))
    if hops > MUCH * at.comm:
        return (f"Raise --batch-size{_now(run, 'batch-size')}: {stands}, and {digits(hops)} s of the {digits(at.comm)} s of "
                "communication are the latency of messages that follow one another in every step; twice the batch halves "
                f"it, and {at.gain(hops / 2)}. {MIND_THE_BATCH}")
    if not bits or not at.wire or not at.backward:
        return f"Try a codec that sends less (--compress): {stands}."
    return _for_the_wire(run, at, stands, bits)


MIND_THE_BATCH = "Larger batches may need another learning rate and more epochs."


def _for_the_wire(run: Run, at: _Figures, stands: str, bits: float) -> str:
    """The codec whose bytes the wire could carry while backward runs, at the rate that was reached."""
    wire = f"the wire takes {digits(at.wire)} s an epoch at {digits(bits)} bits a value"
    if at.wire <= at.backward:
        if shared := _shared_cores(run):
            return (f"Start fewer ranks per host: {stands}; {wire}, less than the {digits(at.backward)} s of backward, but "
                    f"ranks {shared}, so no core is free for the exchange while backward computes.")
        return (f"Lower --bucket-mb{_now(run, 'bucket-mb')}: {stands}; {wire}, less than the {digits(at.backward)} s of "
                f"backward, and smaller buckets are sent earlier; {at.gain(at.exposed)} at best.")
    for codec, needed in CODEC_BITS:
        if needed < bits and at.wire * needed / bits <= at.backward:
            left = at.wire * needed / bits
            return (f"Try --compress {codec}: {stands}; {wire}, with {digits(needed)} bits it would take about "
                    f"{digits(left)} s, which fits behind the {digits(at.backward)} s of backward; {at.gain(at.wire - left)}.")
    return (f"Raise --batch-size{_now(run, 'batch-size')}: {stands}; {wire}, and even with {CODEC_BITS[-1][0]} it would not "
            f"fit behind the {digits(at.backward)} s of backward. Twice the batch needs half as many exchanges, and "
            f"{at.gain(at.wire / 2)}. {MIND_THE_BATCH}")


def _bits(run: Run) -> float | None:
    """The bits that were sent per value of the gradient, for each of which an uncompressed ring sends 32."""
    volume, sent, k = volume_bytes(run), run.time("sent_bytes"), run.steps_per_epoch
    return 32 * sent / run.world_size / (volume * k) if volume and sent and k else None


def _shared_cores(run: Run) -> str:
    """A clause if a rank has more threads than cores."""
    cores, threads = run.attributes.get("cores_per_rank"), run.attributes.get("threads_per_rank")
    if not cores or not threads or threads <= cores:
        return ""
    return f"share cores (threads_per_rank {threads:g}, cores_per_rank {cores:g})"


def _now(run: Run, option: str) -> str:
    value = run.bucket_mb if option == "bucket-mb" else run.config.get(option, "")
    return f" (now {value})" if value else ""


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def advice_table(runs: list[Run]) -> Table | None:
    said = {run.label: advice(run, runs) for run in runs}
    rows: list[Row] = [{"run": label, "advice": text} for label, text in said.items() if text]
    alone = [run.label for run in runs if said[run.label] == "" and not run.exchanges]
    hidden = [run.label for run in runs if said[run.label] == "" and run.exchanges]
    notes = compare.because({text: labels for text, labels in {
        "Nothing to do for {}: no rank exchanges gradients, and the images are there in time.": alone,
        "Nothing to do for {}: nearly all of the exchange runs behind computation, so sending less would gain nothing, and "
        "the images are there in time.": hidden
    }.items() if labels})
    return Table("advice", "What to do", [name("run", "run"), name("advice", "what, and why")], rows, notes,
                 is_prose=True) if rows or notes else None
