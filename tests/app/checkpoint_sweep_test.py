#!/usr/bin/env python3
"""Every call with which a checkpoint changes files goes wrong once: checkpoint_sweep_test.py DPTRAIN FAULTS [MPIRUN [all]].

The program is killed there, or the disk is full from there on, or a write is cut short. Whatever was left is gone on
from, and must come to the same bits. FAULTS is the library of tests/support/file_faults.hpp.

With MPIRUN there are two ranks, of which one is killed; the other one and mpirun then end. A run takes seconds, so not
all calls are tried, but one of each kind ("rename to .waiting"), in the second checkpoint or later: every other one on
rank 0, and the rest on rank 1. With `all`, all calls of both ranks are.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import h5py
except ImportError as missing:
    print(f"skipped: {missing}; apt-get install python3-h5py")
    sys.exit(77)

DPTRAIN, FAULTS, *MPIRUN = sys.argv[1:]
# Three checkpoints, of which one is kept.
OPTIONS = ["--model", "resnet20", "--limit-train", "8" if MPIRUN else "4", "--limit-test", "2", "--batch-size", "4", "--epochs", "3",
           "--threads", "1", "--loader-threads", "1", "--autotune", "off", "--log", "log.h5", "--log-steps", "1",
           "--checkpoint", "ck", "--checkpoint-keep", "1", "--resume"]


def train(folder: str, at: int = 0, kind: str = "", calls: str = "", rank: int = 0) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
    if kind or calls:
        environment |= {"LD_PRELOAD": FAULTS, "DP_FAULTS_BELOW": f"{folder}/ck/", "DP_FAULTS_AT": str(at),
                        "DP_FAULTS_KIND": kind, "DP_FAULTS_LIST": calls}
        if MPIRUN:
            environment["DP_FAULTS_RANK"] = str(rank)
    launcher = []
    if MPIRUN:  # which is not to count itself
        preloaded = ["-x", f"LD_PRELOAD={environment.pop('LD_PRELOAD')}"] if "LD_PRELOAD" in environment else []
        launcher = [MPIRUN[0], "-np", "2", *preloaded]
    return subprocess.run([*launcher, DPTRAIN, *OPTIONS], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=100)


def result(folder: str) -> tuple:
    with h5py.File(f"{folder}/log.h5", "r") as log:
        assert log.attrs["finished"] == 1
        return tuple((table, field, log[table][field].tobytes()) for table, fields in
                     (("epochs", ("epoch", "replica_hash", "train_loss", "test_loss")), ("steps", ("step", "train_loss")))
                     for field in fields)


def calls_of(lines: list[str]) -> list[str]:
    """"pwrite step000000003.4a725912.log.h5.part" of "33 pwrite /tmp/x/ck/step000000003.4a725912.log.h5.part"."""
    return [line.split(" ", 1)[1].split("/")[0].strip() + " " + line.rsplit("/", 1)[-1] for line in lines]


def check(point: tuple[int, str, str], wanted: tuple) -> str:
    """What is wrong at that point; empty if nothing is.

    A checkpoint that is due while the one before is being written comes a little later or, at the end of the run, not at
    all. So a run may make fewer calls than the first one; then another one is made.
    """
    for _ in range(10):
        wrong = try_point(point, wanted)
        if wrong is not None:
            return wrong
    return f"{point}: never reached"


def try_point(point: tuple[int, str, str], wanted: tuple) -> str | None:
    """The same for one run; nothing if it did not come so far."""
    at, kind, call = point
    with tempfile.TemporaryDirectory() as folder:
        done = train(folder, at, kind, f"{folder}/calls")
        name = f"{kind} at {at} {call}"
        lines = pathlib.Path(folder, "calls").read_text().splitlines() if os.path.exists(f"{folder}/calls") else []
        if len(lines) < at:
            return None if done.returncode == 0 and result(folder) == wanted else f"{name}: not reached, {done}"
        call = calls_of(lines)[at - 1]
        if kind.startswith("kill"):
            if done.returncode != -9:
                return f"{name}: exit {done.returncode}, and not killed\n{done.stderr}"
        elif call.startswith("mkdir"):  # before the run begins
            if done.returncode != 3 or "ck: cannot be created: No space left on device" not in done.stderr:
                return f"{name}: exit {done.returncode}\n{done.stderr}"
        elif done.returncode not in (0, 3):  # 3: the last checkpoint is missing
            return f"{name}: exit {done.returncode}\n{done.stderr}"
        elif result(folder) != wanted:
            return f"{name}: the run itself came to another result"
        elif call.startswith(("create", "pwrite")) and "training goes on without it" not in done.stderr:
            return f"{name}: no warning\n{done.stderr}"
        again = train(folder)
        if again.returncode != 0:
            return f"{name}: resumed with exit {again.returncode}\n{again.stderr}"
        if "damaged" in again.stderr or "cut off" in again.stderr:
            return f"{name}: a file is not whole under its final name\n{again.stderr}"
        if result(folder) != wanted:
            return f"{name}: resumed to another result\n{again.stdout}"
        left = sorted(path.name.split(".", 1)[1] for path in pathlib.Path(folder, "ck").iterdir())
        if len(left) > 4:
            return f"{name}: leaves {left}"
    return ""


def check_of_two(point: tuple[int, int, str], wanted: tuple) -> str:
    """What is wrong where that rank is killed before that call, and the run goes on."""
    rank, at, call = point
    name = f"rank {rank} killed at {at} {call}"
    for _ in range(10):
        with tempfile.TemporaryDirectory() as folder:
            done = train(folder, at, "kill-before", f"{folder}/calls", rank)
            if done.returncode == 0 and result(folder) == wanted:
                continue  # it made fewer calls
            if done.returncode == 0 or "Killed" not in done.stderr:
                return f"{name}: exit {done.returncode}\n{done.stderr}"
            again = train(folder)
            if again.returncode != 0 or "damaged" in again.stderr or "cut off" in again.stderr:
                return f"{name}: resumed with exit {again.returncode}\n{again.stderr}"
            if result(folder) != wanted:
                return f"{name}: resumed to another result\n{again.stdout}"
            left = sorted(path.name for path in pathlib.Path(folder, "ck").iterdir())
            # Of each rank the last part and one that was begun; and the logs beside them.
            return f"{name}: leaves {left}" if len(left) > 6 else ""
    return f"{name}: never reached"


def two_ranks() -> int:
    points: list[tuple[int, int, str]] = []
    wanted = None
    for rank in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            done = train(folder, calls=f"{folder}/calls", rank=rank)
            assert done.returncode == 0, done
            calls = calls_of(pathlib.Path(folder, "calls").read_text().splitlines())
            assert wanted in (None, result(folder)), "two undisturbed runs differ"
            wanted = result(folder)
        kinds: dict[str, int] = {}
        for at, call in enumerate(calls, 1):
            kind = call.split(" ")[0] + " " + call.rsplit(".", 1)[-1]
            if at > len(calls) // 3:
                kinds.setdefault(kind, at)
        assert len(kinds) >= 7, kinds
        some = [at for number, at in enumerate(kinds.values()) if number % 2 == rank]
        chosen = range(1, len(calls) + 1) if "all" in MPIRUN else some
        points += [(rank, at, calls[at - 1]) for at in chosen]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(lambda point: check_of_two(point, wanted), points) if text]
    print("\n".join([*wrong, f"{len(points)} points, {len(wrong)} wrong", *map(str, points)]))
    return 1 if wrong else 0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = train(folder, calls=f"{folder}/calls")
        assert done.returncode == 0, done
        wanted = result(folder)
        calls = calls_of(pathlib.Path(folder, "calls").read_text().splitlines())
        assert len(calls) > 30, calls
    points = [(at, kind, call) for at, call in enumerate(calls, 1)
              for kind in ("kill-before", "full", *(("kill-within", "short") if call.startswith("pwrite") else ()))]
    points.append((len(calls), "kill-after", calls[-1]))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(lambda point: check(point, wanted), points) if text]
    print("\n".join([*wrong, f"{len(calls)} calls, {len(points)} points, {len(wrong)} wrong"]))
    return 1 if wrong else 0


sys.exit(two_ranks() if MPIRUN else main())
