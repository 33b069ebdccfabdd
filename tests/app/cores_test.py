#!/usr/bin/env python3
"""The cores that dptrain takes: cores_test.py DPTRAIN MPIRUN CASE. Seen in the line `cores` and its threads."""
import base64
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
    # A mask that something sets between mpirun and this program counts, whatever mpirun does.
    binder = pathlib.Path("numactl")  # by its name; a script, since few machines have the program
    binder.write_text('#!/bin/sh\ncore=$2; shift 2\nexec taskset -c "$core" "$@"\n')
    binder.chmod(0o755)
    for binding in ([], ["--bind-to", "core"], ["--bind-to", "none"]):
        for words in (["taskset", "-c", str(last)], ["./numactl", "-C", str(last)],
                      ["sh", "-c", f'taskset -c {last} "$@"; exit $?', "sh"]):
            line, threads = run(launcher=(MPIRUN, "-np", "1", *binding, *words))
            assert threads == 1 and f"may run on cores {last};" in line, (binding, words, threads, line)
    # Memory alone says nothing on cores.
    binder.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    line, threads = run(launcher=(MPIRUN, "-np", "1", "--bind-to", "core", "./numactl", "-m", "0"))
    assert threads == len(cores) and everywhere in line, (threads, line)


def places_of_openmp() -> None:
    """OpenMP binds the main thread to the first of its places: that is no mask of the user's."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        skip("one core, so that places are no limit")
    last = max(cores)
    for settings in ({"OMP_PROC_BIND": "true"}, {"OMP_PROC_BIND": "spread", "OMP_PLACES": "cores", "OMP_WAIT_POLICY": "passive"}):
        os.environ.update(settings)
        line, threads = run()
        assert threads == len(cores) and f"each rank of this host has {len(cores)} of them" in line, (settings, threads, line)
        line, threads = run(before=bound_to(last))
        assert threads == 1 and f"may run on cores {last};" in line, (settings, threads, line)
        line, threads = run(launcher=(MPIRUN, "-np", "1", "--bind-to", "core", "sh", "-c", '"$@"; exit $?', "sh"))
        assert threads == len(cores), (settings, threads, line)


def thread_limit_of_openmp() -> None:
    """A team that is smaller than planned would wait for ever in oneDNN's kernels."""
    for setting in ("OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"):
        os.environ[setting] = "1" if setting == "OMP_THREAD_LIMIT" else "0"
        for options in ((), ("--threads", "2")):
            line, threads = run(*options)
            allows = line.endswith("; OpenMP's settings (OMP_THREAD_LIMIT) allow 1 thread")
            assert threads == 1 and (allows or not options and os.cpu_count() == 1), (setting, options, threads, line)
        del os.environ[setting]
    os.environ["OMP_THREAD_LIMIT"] = "2"
    line, threads = run("--threads", "2")
    assert threads == 2 and "OMP_THREAD_LIMIT" not in line, (threads, line)


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


PIXEL = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


def most_threads_of_pack(*options: str, before: Callable[[], None] | None = None) -> int:
    """As many as are seen at once. Some live too briefly to be seen in one run, so there are several."""
    return max(threads_of_pack(*options, before=before) for _ in range(4))


def threads_of_pack(*options: str, before: Callable[[], None] | None) -> int:
    pathlib.Path("pack.h5").unlink(missing_ok=True)
    program = os.path.join(os.path.dirname(DPTRAIN), "dptrain-pack")
    process = subprocess.Popen([program, "images", "pack.h5", *options], stdout=subprocess.PIPE, text=True, preexec_fn=before)
    most = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            most = max(most, len(os.listdir(f"/proc/{process.pid}/task")))
    assert process.returncode == 0, process.communicate()
    return most


def pack() -> None:
    """dptrain-pack decodes on the cores that it may use, within its quota."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        skip("one core, so that there is no limit below it")
    for name in ("a", "b"):
        os.makedirs(f"images/{name}")
        for number in range(600):
            pathlib.Path(f"images/{name}/{number}.png").write_bytes(base64.b64decode(PIXEL))
    assert 2 <= most_threads_of_pack() <= len(cores)
    assert most_threads_of_pack(before=bound_to(max(cores))) == 1
    with cgroup_with_quota(50000) as folder:
        assert most_threads_of_pack(before=lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))) == 1


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    globals()[CASE]()
    os.chdir("/")
