#!/usr/bin/env python3
"""Traces of whole runs of dptrain: run_trace_test.py DPTRAIN MPIRUN CASE."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict

try:
    import h5py
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

DPTRAIN, MPIRUN, CASE = sys.argv[1:4]
SMALL = {"--model": "resnet20", "--limit-train": "250", "--limit-test": "20", "--batch-size": "16", "--epochs": "2",
         "--lr": "0.05", "--lr-schedule": "constant", "--threads": "1", "--autotune": "off", "--log-steps": "1",
         "--bucket-mb": "4"}
# In the model's order: conv1, three stages of three blocks, the linear layer.
CONVOLUTIONS = ["conv1"] + [f"layer{stage}.{block}.conv{i}" for stage in (1, 2, 3) for block in (0, 1, 2) for i in (1, 2)]
PARTS = {"data": "data_s", "forward": "forward_s", "backward": "backward_s", "exposed wait": "exposed_comm_s",
         "optimizer": "optimizer_s"}
SEGMENT = 65536  # floats


def command(ranks: int, *options: str) -> list[str]:
    """The small run with some options replaced or added: "--name", "value", ..."""
    chosen = SMALL | dict(zip(options[::2], options[1::2]))
    return [MPIRUN, "-np", str(ranks), DPTRAIN, *(word for pair in chosen.items() for word in pair)]


def run(ranks: int, *options: str) -> str:
    done = subprocess.run(command(ranks, *options), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Slice:
    """One slice, its times in whole nanoseconds."""

    def __init__(self, event: dict) -> None:
        self.name, self.category, self.args = event["name"], event["cat"], event["args"]
        self.rank, self.track = event["pid"] // 10000 - 1, event["tid"]
        self.begin = round(event["ts"] * 1000)
        self.end = self.begin + round(event["dur"] * 1000)
        self.step = self.args["step"]

    @property
    def length_s(self) -> float:
        return (self.end - self.begin) * 1e-9


class Trace:
    def __init__(self, path: str) -> None:
        whole = json.loads(pathlib.Path(path).read_text())
        assert not pathlib.Path(path + ".part").exists()
        self.about = whole["otherData"]
        assert not any(self.about["slices_left_out"]), self.about
        self.names = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in whole["traceEvents"] if e["ph"] == "M"}
        self.slices = [Slice(e) for e in whole["traceEvents"] if e["ph"] == "X"]
        self.ranks = range(self.about["ranks"])
        self.error_ns = [round(us * 1000) for us in self.about["clock_error_us"]]
        self.steps = sorted({s.step for s in self.slices})
        self.check_nesting()

    def of(self, rank: int, step: int, *categories: str) -> list[Slice]:
        return [s for s in self.slices if s.rank == rank and s.step == step and s.category in categories]

    def check_nesting(self) -> None:
        """On a track every two slices are apart or one in the other, and the file has them in order."""
        tracks = defaultdict(list)
        for s in self.slices:
            assert 0 <= s.begin <= s.end, vars(s)
            tracks[s.track].append(s)
        for track, slices in tracks.items():
            assert ("thread_name", track // 10000 * 10000, track) in self.names, track
            order = [(s.begin, -s.end) for s in slices]
            assert order == sorted(order), track
            around: list[Slice] = []
            for s in slices:
                while around and around[-1].end <= s.begin:
                    around.pop()
                assert not around or s.end <= around[-1].end, (vars(s), vars(around[-1]))
                around.append(s)


def check_parts(trace: Trace, rows: dict) -> None:
    """Every step has its parts, in order and inside; rank 0's are as long as the log says."""
    for rank in trace.ranks:
        last_end = 0
        for step in trace.steps:
            (whole,) = trace.of(rank, step, "step")
            assert whole.name == f"step {step}" and whole.begin >= last_end
            last_end = whole.end
            parts = trace.of(rank, step, "part")
            names = [p.name for p in parts]
            assert [n for n in names if n != "data"] == ["forward", "backward", "exposed wait", "optimizer"], names
            assert all(whole.begin <= p.begin and p.end <= whole.end for p in parts)
            if rank != 0 or step not in rows:
                continue
            lengths = {p.name: p.length_s for p in parts} | {f"step {step}": whole.length_s}
            for name, field in (PARTS | {f"step {step}": "step_s"}).items():
                logged, found = rows[step][field], lengths.get(name, 0.0)
                if name == "exposed wait" and found > logged:
                    # What the wait was longer than the communication is in the log's other_s.
                    logged = min(found, logged + rows[step]["other_s"])
                assert abs(found - logged) <= max(1e-3, 0.03 * logged), (step, name, found, logged)


def check_layers(trace: Trace, ranks_without: dict[int, set[int]]) -> None:
    """Every layer runs once each way in every step, inside that pass; a rank without images runs none."""
    every = None
    for rank in trace.ranks:
        for step in trace.steps:
            passes = {p.name: p for p in trace.of(rank, step, "part")}
            for way in ("forward", "backward"):
                layers = [s for s in trace.of(rank, step, way) if s.name != "loss"]
                if rank in ranks_without.get(step, set()):
                    assert not layers, (rank, step)
                    continue
                assert all(passes[way].begin <= s.begin and s.end <= passes[way].end for s in layers)
                names = [s.name for s in layers]
                every = every or sorted(names)
                assert sorted(names) == every and len(set(names)) == len(names), (rank, step, way)
                in_order = [n for n in (names if way == "forward" else names[::-1]) if n in CONVOLUTIONS]
                assert in_order == CONVOLUTIONS, in_order
    assert every and "linear" in every, every


def chunk_segments(elements: int, ranks: int) -> list[list[int]]:
    """The numbers of the segments of every chunk, as comm/exchange/exchange_plan.hpp cuts a bucket."""
    sizes = [elements // ranks + (c < elements % ranks) for c in range(ranks)]
    count = max(1, -(-sizes[0] // (SEGMENT + SEGMENT // 4)))
    length = -(-sizes[0] // count)
    return [[c * count + at for at in range(-(-size // length))] for c, size in enumerate(sizes)]


def check_ring(trace: Trace, buckets: list[tuple[int, bool]]) -> None:
    """The codec calls of a ring, and when they came; buckets: their elements, whether they are compressed."""
    ranks = len(trace.ranks)
    cuts = [chunk_segments(elements, ranks) for elements, _ in buckets]
    assert max(len(chunk) for cut in cuts for chunk in cut) > 1, "too small to have segments"
    for step in trace.steps:
        encodes = [{(s.args["bucket"], s.args["segment"]): s for s in trace.of(rank, step, "encode")} for rank in trace.ranks]
        for rank in trace.ranks:
            of_bucket = trace.of(rank, step, "bucket")
            assert sorted(s.args["bucket"] for s in of_bucket) == list(range(len(buckets)))
            assert len(trace.of(rank, step, "encode")) == len(encodes[rank])
            expected_encodes, expected_decodes = set(), Counter()
            for b, ((elements, is_compressed), cut) in enumerate(zip(buckets, cuts)):
                owned = (rank + 1) % ranks
                for chunk, segments in enumerate(cut):
                    for segment in segments:
                        expected_encodes.add((b, segment, "total" if chunk == owned else "partial"))
                        if chunk != rank:
                            expected_decodes[b, segment, "partial"] += 1
                        if chunk != owned or is_compressed:
                            expected_decodes[b, segment, "total"] += 1
                (bucket,) = [s for s in of_bucket if s.args["bucket"] == b]
                assert bucket.args["elements"] == elements and bucket.args["sent_bytes"] > 0
                assert bucket.name == f"bucket {b}, {'q8' if is_compressed else 'none'}", bucket.name
            found = {(*key, s.args["sum"]) for key, s in encodes[rank].items()}
            assert found == expected_encodes, found ^ expected_encodes
            decodes = trace.of(rank, step, "decode")
            counted = Counter((s.args["bucket"], s.args["segment"], s.args["sum"]) for s in decodes)
            assert counted == expected_decodes, (counted, expected_decodes)
            for s in decodes:
                # Who encoded it: the left neighbour, or the owner of the sum.
                key = s.args["bucket"], s.args["segment"]
                chunk = next(c for c, segments in enumerate(cuts[key[0]]) if key[1] in segments)
                sender = (rank - 1) % ranks if s.args["sum"] == "partial" else (chunk - 1) % ranks
                sent = encodes[sender][key]
                assert sent.args["sum"] == s.args["sum"] and sent.args["bytes"] == s.args["bytes"]
                assert s.begin >= sent.begin - trace.error_ns[rank] - trace.error_ns[sender], (vars(s), vars(sent))


def rows_of(log: h5py.File) -> dict:
    return {int(row["step"]): row for row in log["steps"][:]}


def three_ranks() -> None:
    # Six steps an epoch: the trace goes on over an evaluation, to the end of the run.
    said = run(3, "--compress", "q8", "--bucket-mb", "0.99", "--log", "a.h5", "--trace", "t.json", "--trace-steps", "2:100")
    assert said.count("The trace is t.json: ") == said.count("slices, and the ranks' clocks agree within ") == 1, said
    trace, log = Trace("t.json"), h5py.File("a.h5", "r")
    assert trace.steps == list(range(3, 13)) and trace.about["model"] == "resnet20"
    assert trace.error_ns[0] == 0 < min(trace.error_ns[1:]) and max(trace.error_ns) < 1e9
    for rank in trace.ranks:
        process = (rank + 1) * 10000
        assert trace.names["process_name", process, process].startswith(f"rank {rank}, ")
        assert [trace.names["thread_name", process, process + i] for i in range(3)] == ["compute", "exchange", "bucket 0"]
    rows = rows_of(log)
    check_parts(trace, rows)
    check_layers(trace, {})
    names, last = log.attrs["codec_names"], log["buckets"][:]
    last = last[last["epoch"] == 1]
    check_ring(trace, [(int(b["elements"]), names[b["codec"]].startswith("q8")) for b in last])
    # The same watches as the log's.
    for step in trace.steps:
        for category, field in (("encode", "encode_s"), ("decode", "decode_s")):
            found = sum(s.length_s for s in trace.of(0, step, category))
            assert abs(found - rows[step][field]) < 1e-6 + 1e-3 * found, (step, field, found, rows[step][field])
        # But for waits that are too short to be told.
        for name, field in (("wait: wire", "wire_s"), ("wait: peer", "peer_wait_s")):
            found = sum(s.length_s for s in trace.of(0, step, "wait") if s.name == name)
            assert abs(found - rows[step][field]) < 2e-3 + 0.05 * found, (step, field, found, rows[step][field])


def changes_nothing() -> None:
    options = ("--compress", "q4", "--bucket-mb", "0.3")
    run(3, *options, "--log", "a.h5", "--trace", "t.json", "--trace-steps", "0:4")
    run(3, *options, "--log", "b.h5")
    assert Trace("t.json").steps == [1, 2, 3, 4]
    a, b = h5py.File("a.h5", "r"), h5py.File("b.h5", "r")
    for field in ("replica_hash", "train_loss", "test_loss", "sent_bytes"):
        assert (a["epochs"][field] == b["epochs"][field]).all(), field
    assert (a["steps"]["train_loss"] == b["steps"]["train_loss"]).all()


def powersgd_and_warm_up() -> None:
    # 50 images in steps of 3 x 16: the last step has 2, so one of three ranks has none.
    run(3, "--compress", "powersgd:rank=2", "--compress-warmup", "1", "--limit-train", "50", "--log", "a.h5",
        "--trace", "t.json", "--trace-steps", "0:4")
    trace = Trace("t.json")
    assert trace.steps == [1, 2, 3, 4]
    check_parts(trace, rows_of(h5py.File("a.h5", "r")))
    check_layers(trace, {2: {2}, 4: {2}})
    for step in trace.steps:
        for rank in trace.ranks:
            names = Counter(s.name for s in trace.of(rank, step, "bucket", "encode", "decode"))
            is_warm = step > 2
            assert names["bucket 0, powersgd" if is_warm else "bucket 0, none"] == 1, names
            # Nineteen convolutions and the linear layer.
            assert {names[n] for n in ("P = M Q", "Q = M^T P", "P Q^T")} == {20 if is_warm else 0}, names
            assert {s.args["bucket"] for s in trace.of(rank, step, "encode", "decode")} == {0, 1}


def accumulated_steps() -> None:
    # 100 images in steps of 2 ranks x 3 parts x 8: the last one has 4, so that some parts have none.
    run(2, "--accumulate", "3", "--batch-size", "8", "--limit-train", "100", "--epochs", "1", "--log", "a.h5",
        "--trace", "t.json", "--trace-steps", "0:3")
    trace, rows = Trace("t.json"), rows_of(h5py.File("a.h5", "r"))
    assert trace.steps == [1, 2, 3]
    for rank in trace.ranks:
        for step in trace.steps:
            (whole,) = trace.of(rank, step, "step")
            parts = trace.of(rank, step, "part")
            names = [p.name for p in parts if p.name != "data"]
            assert names == ["forward", "backward"] * 3 + ["exposed wait", "optimizer"], names
            assert all(whole.begin <= p.begin and p.end <= whole.end for p in parts)
            layers = Counter(s.name for s in trace.of(rank, step, "forward"))
            assert all(layers[n] == (3 if step < 3 else layers["linear"]) for n in CONVOLUTIONS), (step, layers)
            assert step < 3 or layers["linear"] < 3, layers
            for name in ("forward", "backward") if rank == 0 else ():
                found, logged = sum(p.length_s for p in parts if p.name == name), rows[step][name + "_s"]
                assert abs(found - logged) <= max(1e-3, 0.03 * logged), (step, name, found, logged)


def statistics_of_all_ranks() -> None:
    # As in the case above, the last step leaves one of three ranks without images; it gathers, too.
    run(3, "--sync-bn", "on", "--limit-train", "50", "--epochs", "1", "--log", "a.h5", "--trace", "t.json",
        "--trace-steps", "0:2")
    trace, log = Trace("t.json"), h5py.File("a.h5", "r")
    rows, channels = rows_of(log), [16] * 7 + [32] * 6 + [64] * 6  # of the layers of normalisation
    for rank in trace.ranks:
        for step in trace.steps:
            waits = [s for s in trace.of(rank, step, "wait") if s.name == "wait: statistics"]
            gathers = trace.of(rank, step, "statistics")
            assert len(waits) == len(gathers) == 2 * len(channels), (rank, step, len(waits), len(gathers))
            sent = [g.args["sent_bytes"] for g in gathers]
            assert sorted(sent) == sorted(2 * [2 * (20 + 4 * (1 + 2 * c)) for c in channels]), sent
            if rank != 0:
                continue
            for name in ("forward", "backward"):
                (part,) = [p for p in trace.of(rank, step, "part") if p.name == name]
                inside = sum(w.length_s for w in waits if part.begin <= w.begin and w.end <= part.end)
                found, logged = part.length_s - inside, rows[step][name + "_s"]
                assert abs(found - logged) <= max(1e-3, 0.03 * logged), (step, name, found, logged)
    (epoch,) = log["epochs"][:]
    assert epoch["statistics_bytes"] == 3 * sum(trace_bytes for trace_bytes in sent) * 2, epoch["statistics_bytes"]
    assert 0 < epoch["statistics_s"] <= epoch["exposed_comm_s"] <= epoch["comm_s"], epoch


def killed_run_leaves_no_trace() -> None:
    process = subprocess.Popen(command(2, "--epochs", "1000", "--log", "a.h5", "--trace", "t.json", "--trace-steps", "0:1000"),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline, steps = time.time() + 120, 0
        while steps < 3 and time.time() < deadline and process.poll() is None:
            time.sleep(0.3)
            try:
                with h5py.File("a.h5", "r") as log:  # while it is written
                    steps = len(log["steps"])
            except (OSError, KeyError):
                continue
        assert steps >= 3, f"no three steps in 120 s; exit code {process.poll()}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list(pathlib.Path(".").glob("t.json*"))


# ---- on a GPU, real or cuda_on_cpu, which takes a quarter of a second an image ----

def gpu_steps() -> None:
    # Two steps an epoch.
    gpu = ("--device", "cuda", "--limit-train", "16", "--limit-test", "4", "--batch-size", "4")
    probe = subprocess.run([DPTRAIN, "--device", "cuda", "--limit-train", "1", "--limit-test", "1", "--epochs", "1",
                            "--log", "none", "--autotune", "off"], capture_output=True, text=True, timeout=200)
    if probe.returncode == 5:
        print(f"skipped: {probe.stderr.strip()}")
        sys.exit(77)
    for path in ("device", "host"):
        # Rows of the log only now and then, so that a step's times come while the next one runs.
        run(2, *gpu, "--compress", "q8", "--gpu-exchange", path, "--log", f"{path}.h5", "--log-steps", "4",
            "--trace", f"{path}.json", "--trace-steps", "1:3")
        trace = Trace(f"{path}.json")
        assert trace.steps == [2, 3, 4]
        rows = rows_of(h5py.File(f"{path}.h5", "r"))
        assert 4 in rows and 3 not in rows
        check_parts(trace, rows)
        for rank in trace.ranks:
            for step in trace.steps:
                assert not trace.of(rank, step, "forward", "backward"), "a graph's layers have no times of the host"
                assert trace.of(rank, step, "encode") and trace.of(rank, step, "decode")
                # The step lies by the GPU's clock, its exchange by the host's: within half a step of each other.
                whole = trace.of(rank, step, "step")[0]
                error = (whole.end - whole.begin) / 2
                for bucket in trace.of(rank, step, "bucket"):
                    assert whole.begin - error < bucket.begin and bucket.end < whole.end + error, (vars(bucket), vars(whole))


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    globals()[CASE]()
    print(f"{CASE}: passed in {pathlib.Path(folder).name}")
