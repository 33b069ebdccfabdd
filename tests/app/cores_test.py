#!/usr/bin/env python3
"""The cores that dptrain takes: cores_test.py DPTRAIN MPIRUN CASE. Seen in the line `cores` and its threads."""
import contextlib
import errno
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

DPTRAIN, MPIRUN, CASE = sys.argv[1:4]
SMALL = ["--model", "resnet20", "--limit-train", "16", "--limit-test", "8", "--epochs", "1", "--batch-size", "8",
         "--autotune", "off"]


def skip(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


def run(*options: str, launcher: tuple[str, ...] = (), before: Callable[[], None] | None = None) -> tuple[str, int]:
    """The line `cores`, which may be folded, and the number of threads that the line `devices` tells."""
    done = subprocess.run([*launcher, DPTRAIN, *SMALL, *options], capture_output=True, text=True, timeout=100,
                          preexec_fn=before)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    line = re.search(r"^ *cores +(.*(?:\n {8,}.*)*)$", done.stdout, re.MULTILINE)
    threads = re.search(r"(\d+) threads?\b", done.stdout)
    assert line and threads, done.stdout
    return " ".join(line[1].split()), int(threads[1])


def bound_to(core: int) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, {core})


def affinity() -> None:
    last = max(os.sched_getaffinity(0))
    line, threads = run(before=bound_to(last))
    assert threads == 1, (threads, line)
    assert f"may run on cores {last};" in line, line
    if os.cpu_count() > 1:
        assert "the affinity mask (taskset, cpuset) allows 1 of the host's" in line, line
    line, threads = run("--threads", "2", before=bound_to(last))
    assert threads == 2 and f"may run on cores {last};" in line, line


def affinity_of_mpirun() -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        skip("one core, so that mpirun cannot bind to fewer")
    # mpirun's own binding does not count, even below a script ...
    everywhere = f"each rank of this host has {len(cores)} of them"
    for words in ([], ["sh", "-c", '"$@"; exit $?', "sh"]):
        line, threads = run(launcher=(MPIRUN, "-np", "1", "--bind-to", "core", *words))
        assert threads == len(cores) and everywhere in line, (threads, line)
    # ... but a mask from before mpirun does, and one from behind it where mpirun binds nothing.
    last = max(cores)
    for binding in ("core", "none"):
        line, threads = run(launcher=(MPIRUN, "-np", "1", "--bind-to", binding), before=bound_to(last))
        assert threads == 1 and f"may run on cores {last};" in line, (threads, line)
    line, threads = run(launcher=(MPIRUN, "-np", "1", "--bind-to", "none", "taskset", "-c", str(last)))
    assert threads == 1 and f"may run on cores {last};" in line, (threads, line)


def remove(cgroup: pathlib.Path) -> None:
    """MPI's daemon of a run without mpirun ends a little later."""
    for _ in range(300):
        try:
            cgroup.rmdir()
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        time.sleep(0.1)
    cgroup.rmdir()


@contextlib.contextmanager
def cgroup_with_quota(quota_us: int):
    """A cgroup below this process's own, of version 1 or 2, as the host has them."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()[:3]
        folder = pathlib.Path(left.split()[4]) / f"dptrain_test.{os.getpid()}"
        if kind != "cgroup2" and not (kind == "cgroup" and "cpu" in options.split(",")):
            continue
        try:
            folder.mkdir()
        except OSError as error:
            skip(f"{folder}: {error.strerror}")
        try:
            try:
                if kind == "cgroup2":
                    if not (folder / "cpu.max").exists():
                        continue
                    (folder / "cpu.max").write_text(f"{quota_us} 100000")
                else:
                    (folder / "cpu.cfs_period_us").write_text("100000")
                    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
            except OSError as error:
                skip(f"no quota in {folder}: {error.strerror}")
            yield folder
            return
        finally:
            remove(folder)
    skip("no cgroup with a controller for processors is mounted")


def quota() -> None:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        skip("one core, so that no quota is smaller")
    with cgroup_with_quota(50000) as folder:
        def enter() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        probe = subprocess.run(["cat", "/proc/self/cgroup"], capture_output=True, text=True, preexec_fn=enter)
        if folder.name not in probe.stdout:
            skip(f"/proc/self/cgroup does not name {folder}")
        line, threads = run(before=enter)
        assert threads == 1 and line.endswith("; the CPU quota is 0.5 cores"), (threads, line)
        line, threads = run("--threads", "2", before=enter)
        assert threads == 2 and line.endswith("; --threads 2 is more than the CPU quota of 0.5 cores allows (1)"), line


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    globals()[CASE]()
    os.chdir("/")
