#!/usr/bin/env python3
"""Every call with which a checkpoint changes files goes wrong once: checkpoint_sweep_test.py DPTRAIN FAULTS [MPIRUN [all]].

The program is killed there, or the disk is full from there on, or a write is cut short. Whatever was left is gone on
from, and must come to the same bits. FAULTS is the library of tests/support/file_faults.hpp.

With MPIRUN there are two ranks, and it happens to one of them; when that one is killed, the other one and mpirun end. A
run takes seconds, so not all calls are tried, but one of each kind ("rename to .waiting"), in the second checkpoint or
later. With `all`, all calls of both ranks are, in all ways.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import typing

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


class Point(typing.NamedTuple):
    """`kind` happens to that rank at its call number `at`."""

    rank: int
    at: int
    kind: str
    call: str


def check(point: Point, wanted: tuple) -> str:
    """What is wrong at that point; empty if nothing is.

    A checkpoint that is due while the one before is being written comes a little later or, at the end of the run, not at
    all. So a run may make fewer calls than the first one; then another one is made.
    """
    for _ in range(10):
        wrong = try_point(point, wanted)
        if wrong is not None:
            return wrong and f"{point}: {wrong}"
    return f"{point}: never reached"


def try_point(point: Point, wanted: tuple) -> str | None:
    """The same for one run; nothing if it did not come so far."""
    with tempfile.TemporaryDirectory() as folder:
        done = train(folder, point.at, point.kind, f"{folder}/calls", point.rank)
        lines = pathlib.Path(folder, "calls").read_text().splitlines() if os.path.exists(f"{folder}/calls") else []
        if len(lines) < point.at:
            return None if done.returncode == 0 and result(folder) == wanted else f"not reached, {done}"
        calls = calls_of(lines)
        wrong = first_run(point, calls[point.at - 1], done, folder, wanted)
        if wrong:
            return wrong
        again = train(folder)
        if again.returncode != 0:
            return f"resumed with exit {again.returncode}\n{again.stderr}"
        if "damaged" in again.stderr or "cut off" in again.stderr:
            return f"a file is not whole under its final name\n{again.stderr}"
        if result(folder) != wanted:
            return f"resumed to another result\n{again.stdout}"
        had_one = any(call.startswith("rename") and call.endswith(".ckpt") for call in calls[:point.at - 1])
        if had_one and "resumed from step" not in again.stdout:
            return f"begins anew, although a checkpoint was complete\n{again.stdout}"
        # There may be the last part of each rank and one that was begun, and the logs beside them.
        left = sorted(path.name for path in pathlib.Path(folder, "ck").iterdir())
        return f"leaves {left}" if len(left) > (6 if MPIRUN else 4) else ""


def first_run(point: Point, call: str, done: subprocess.CompletedProcess, folder: str, wanted: tuple) -> str:
    """What is wrong with the run in which it happened."""
    if point.kind.startswith("kill"):
        was_killed = "Killed" in done.stderr and done.returncode != 0 if MPIRUN else done.returncode == -9
        return "" if was_killed else f"exit {done.returncode}, and not killed\n{done.stderr}"
    if call.startswith("mkdir"):  # before the run begins
        is_refused = done.returncode == 3 and "ck: cannot be created: No space left on device" in done.stderr
        return "" if is_refused else f"exit {done.returncode}\n{done.stderr}"
    if done.returncode not in (0, 3):  # 3: the last checkpoint is missing
        return f"exit {done.returncode}\n{done.stderr}"
    if result(folder) != wanted:
        return "the run itself came to another result"
    if call.startswith(("create", "pwrite")) and "training goes on without it" not in done.stderr:
        return f"no warning\n{done.stderr}"
    return ""


def kinds_at(call: str) -> tuple[str, ...]:
    return ("kill-before", "full", *(("kill-within", "short") if call.startswith("pwrite") else ()))


def some_points(rank: int, calls: list[str]) -> list[Point]:
    """One call of each kind of call: every other one is killed on rank 0 and fails on rank 1, and the rest the other way."""
    kinds: dict[str, int] = {}
    for at, call in enumerate(calls, 1):
        if at > len(calls) // 3:
            kinds.setdefault(call.split(" ")[0] + " " + call.rsplit(".", 1)[-1], at)
    assert len(kinds) >= 7, kinds
    return [Point(rank, at, "kill-before" if number % 2 == rank else kinds_at(calls[at - 1])[-1 if number % 4 < 2 else 1],
                  calls[at - 1]) for number, at in enumerate(kinds.values())]


def main() -> int:
    points: list[Point] = []
    wanted = None
    for rank in (0, 1) if MPIRUN else (0,):
        with tempfile.TemporaryDirectory() as folder:
            done = train(folder, calls=f"{folder}/calls", rank=rank)
            assert done.returncode == 0, done
            calls = calls_of(pathlib.Path(folder, "calls").read_text().splitlines())
            assert wanted in (None, result(folder)), "two undisturbed runs differ"
            wanted = result(folder)
        assert len(calls) > (15 if MPIRUN else 30), calls
        if MPIRUN and "all" not in MPIRUN:
            points += some_points(rank, calls)
            continue
        points += [Point(rank, at, kind, call) for at, call in enumerate(calls, 1) for kind in kinds_at(call)]
        points.append(Point(rank, len(calls), "kill-after", calls[-1]))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = [text for text in pool.map(lambda point: check(point, wanted), points) if text]
    print("\n".join([*wrong, f"{len(points)} points, {len(wrong)} wrong", *(map(str, points) if MPIRUN else ())]))
    return 1 if wrong else 0


sys.exit(main())
