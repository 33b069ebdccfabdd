#!/usr/bin/env python3
"""Ranks that are silent at some place of a run, and what the others say: deadlines_test.py DPTRAIN MPIRUN CASE SHIM."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

DPTRAIN, MPIRUN, CASE, SHIM = sys.argv[1:5]
RANKS = 3
SLOWER = 5 if os.environ.get("DP_SANITIZE") else 1  # programs with a sanitizer
OPTIONS = ["--model", "resnet20", "--limit-test", "8", "--batch-size", "8", "--threads", "1", "--autotune", "off",
           "--lr", "0.01", "--comm-timeout", "3"]


def command(marker: str, *options: str, environment: dict[str, str] | None = None, ranks: int = RANKS) -> list[str]:
    exported = [word for name, value in (environment or {}).items() for word in ("-x", f"{name}={value}")]
    if environment:
        exported += ["-x", f"LD_PRELOAD={SHIM}"]
    return [MPIRUN, "-np", str(ranks), *exported, DPTRAIN, *OPTIONS, *options, "--seed", marker]


def marker_of(rank: int) -> str:
    """The seed of a run, by which its processes are found."""
    return str(10 * os.getpid() + rank)


def processes(marker: str) -> list[int]:
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"--seed\0{marker}\0".encode() in words:
            found.append(int(folder.name))
    return found


def is_stopped(process: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1][0] == "T"
    except OSError:
        return False


def check(marker: str, done: subprocess.Popen, out: str, err: str, rank: int, place: str) -> None:
    """One sentence names the rank and the place; exit code 4; no process is left."""
    said = [line for line in err.splitlines() if line.startswith("dptrain: ") and "silent" in line]
    assert len(said) == 1, (rank, place, out, err)
    assert re.fullmatch(rf"dptrain: rank {rank} on host \S+ has been silent for \d+ s in {place}: its process \d+ is "
                        r"stopped \(SIGSTOP or Ctrl-Z\); .*raise the timeout, now 3 s \(option --comm-timeout\) "
                        r"\(reported by rank \d on host \S+\)", said[0]), said[0]
    assert done.returncode == 4, (rank, done.returncode, err)
    end = time.monotonic() + 10
    while processes(marker):
        assert time.monotonic() < end, f"left: {processes(marker)}"
        time.sleep(0.1)


def in_parallel(work) -> None:
    """work(rank) for every rank, at the same time: they mostly wait."""
    failures = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def run(marker: str, words: list[str]) -> tuple[subprocess.Popen, str, str]:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=100 * SLOWER)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for left in processes(marker):
                os.kill(left, signal.SIGKILL)
    return process, out, err


def stopped_in(call: str, place: str, *options: str) -> None:
    def one(rank: int) -> None:
        marker = marker_of(rank)
        own = [word.replace("RANK", str(rank)) for word in options]
        words = command(marker, *own, "--log", "none", environment={"DP_STOP_IN": f"{rank}:{call}"})
        check(marker, *run(marker, words), rank, place)

    in_parallel(one)


def data() -> None:
    os.makedirs("data")
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        pathlib.Path(f"data/{name}.bin").write_bytes(bytes(8 * 3073))


def stopped_in_init() -> None:
    stopped_in("MPI_Init", "MPI_Init", "--limit-train", "64", "--epochs", "1")


def stopped_after_init() -> None:
    stopped_in("MPI_Comm_dup", "MPI_Comm_dup", "--limit-train", "64", "--epochs", "1")


def stopped_in_loading() -> None:
    data()
    stopped_in("data_batch_3.bin", "the loading of data", "--data-dir", "data", "--epochs", "1")


def stopped_in_measuring() -> None:
    OPTIONS[OPTIONS.index("--autotune") + 1] = "on"
    stopped_in("MPI_Isend 20", "a measurement of the network", "--limit-train", "64", "--epochs", "1")


def stopped_in_finalize() -> None:
    data()
    stopped_in("MPI_Finalize", "MPI_(Finalize|Comm_free)", "--data-dir", "data", "--epochs", "1")


def stopped_in_checkpoint() -> None:
    # The thread that writes it is stopped with the rank. The others wait in a step, or for its report.
    stopped_in("fsync .part", r"(the exchange of bucket \d+ in step \d+|a \w+ .*after step \d+|an agreement.*)",
               "--limit-train", "480", "--epochs", "1", "--checkpoint", "ckRANK", "--checkpoint-every", "2steps")
    # The first checkpoint never became complete: nothing says that it did.
    for rank in range(RANKS):
        assert not [name for name in os.listdir(f"ck{rank}") if name.endswith(".ckpt")], os.listdir(f"ck{rank}")


def stopped_in_training() -> None:
    def one(rank: int) -> None:
        marker = marker_of(rank)
        process = subprocess.Popen(command(marker, "--limit-train", "48", "--epochs", "1000", "--log", "none"),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert any(line.startswith("epoch ") for line in process.stdout), process.stderr.read()
            for candidate in processes(marker):
                try:
                    environment = pathlib.Path(f"/proc/{candidate}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
                    os.kill(candidate, signal.SIGSTOP)
            out, err = process.communicate(timeout=100 * SLOWER)
        finally:
            for left in processes(marker) if process.poll() is None else []:
                os.kill(left, signal.SIGKILL)
        check(marker, process, out, err, rank,
              r"(the exchange of bucket \d+ in step \d+|a \w+ .*after step \d+|an agreement.*)")

    in_parallel(one)


def slow_loading_is_waited_for() -> None:
    """Rank 1 takes more than two time-outs in that call, and the others say once who keeps them waiting."""
    data()
    words = command(marker_of(0), "--data-dir", "data", "--epochs", "1", "--log", "none",
                    environment={"DP_PAUSE_IN": "1:data_batch_3.bin:8"})
    process, out, err = run(marker_of(0), words)
    assert process.returncode == 0, err
    said = [line for line in err.splitlines() if line.startswith("dptrain: ") and "rank" in line]
    assert len(said) == 2, said
    assert re.fullmatch(r"dptrain: the other ranks have been waiting for rank 1 on host \S+ for \d+ s in the loading of data: "
                        "it is busy with work of its own", said[0]), said
    assert re.fullmatch(r"dptrain: rank 1 on host \S+ continues after \d+ s", said[1]), said


def slow_last_checkpoint_is_waited_for() -> None:
    """Rank 1's disk takes more than two time-outs for its part: it is named, and the end waits."""
    words = command(marker_of(0), "--limit-train", "24", "--epochs", "1", "--log", "none", "--checkpoint", "ck",
                    environment={"DP_PAUSE_IN": "1:fsync .part:8"})
    process, out, err = run(marker_of(0), words)
    assert process.returncode == 0, err
    said = [line for line in err.splitlines() if line.startswith("dptrain: ")]
    assert len(said) == 1, said
    assert re.fullmatch(r"dptrain: the checkpoint of step 1 is not complete: rank 1 on \S+ has not written its part for \d s; "
                        "the end of the run waits for it", said[0]), said
    assert len([name for name in os.listdir("ck") if name.endswith(".ckpt")]) == RANKS, (os.listdir("ck"), out)


def checkpoint_time_is_accounted() -> None:
    """What training waits for a slow disk that renames and removes files is checkpoint_s, and no step's time."""
    try:
        import h5py
    except ImportError as missing:
        print(f"skipped: {missing}; apt-get install python3-h5py")
        sys.exit(77)
    pause_s = 0.3
    words = command(marker_of(0), "--limit-train", "960", "--epochs", "2", "--log", "a.h5", "--log-steps", "1", "--checkpoint", "ck",
                    "--checkpoint-every", "1steps", environment={"DP_PAUSE_IN": f"1:fsync ck:{pause_s}"}, ranks=2)
    process, _, err = run(marker_of(0), words)
    assert process.returncode == 0, err
    with h5py.File("a.h5", "r") as log:
        epochs, ranks, steps = (log[table][:] for table in ("epochs", "ranks", "steps"))
    assert epochs["checkpoint_s"].sum() > pause_s, epochs["checkpoint_s"]
    parts = ("data_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "other_s")
    for row in [*epochs, *ranks]:
        assert abs(sum(row[part] for part in parts) - row["epoch_s"]) < 1e-9, row
    for row in ranks[ranks["rank"] == 0]:
        assert steps["step_s"][steps["epoch"] == row["epoch"]].sum() <= row["epoch_s"] + 1e-6, (row, steps)


def hanging_disk_under_a_checkpoint() -> None:
    """Rank 1's disk hangs: training goes on and says so, and the end says what is missing."""
    words = command(marker_of(0), "--limit-train", "240", "--epochs", "10", "--log", "a.h5", "--checkpoint", "ck",
                    "--checkpoint-every", "2steps", "--throttle", "100mbit",
                    environment={"DP_PAUSE_IN": "1:fsync .part:100000"})
    words[words.index("--comm-timeout") + 1] = "2"
    begin = time.monotonic()
    process, out, err = run(marker_of(0), words)
    took_s = time.monotonic() - begin
    said = [line for line in err.splitlines() if line.startswith("dptrain: ")]
    assert process.returncode == 3 and "epoch 10/10 " in out and len(said) == 2 and took_s < 90 * SLOWER, (took_s, out, err)
    assert re.fullmatch(r"dptrain: the checkpoint of step 2 is not complete: rank 1 on \S+ has not written its part for \d+ s; "
                        r"training goes on, but writes no other checkpoint until this checkpoint is complete: "
                        r"check the disk of that host", said[0]), said
    assert re.fullmatch(r"dptrain: the training is complete, but some files are not: there is no complete checkpoint in ck "
                        r"\(rank 1 on \S+ has not written its part for \d+ s\)", said[1]), said
    assert not processes(marker_of(0)) and not list(pathlib.Path("ck").glob("*.ckpt")), os.listdir("ck")


def stale_segments_are_removed() -> None:
    """Of shared memory that killed jobs have left, what is old and mapped by nobody goes at the next start.

    A process of another container with the same host name counts, too: /proc does not show it.
    """
    host = os.uname().nodename
    folder = pathlib.Path("segments")
    folder.mkdir()

    def make(name: str, age_s: float = 3600) -> pathlib.Path:
        path = folder / name
        path.write_bytes(bytes(4096))
        os.utime(path, (time.time() - age_s,) * 2)
        return path.resolve()

    stale = make(f"vader_segment.{host}.{os.geteuid()}.dead0001.0")
    mapped = make(f"vader_segment.{host}.{os.geteuid()}.dead0001.1")
    young = make(f"vader_segment.{host}.{os.geteuid()}.dead0002.0", 0)
    others = [make(f"vader_segment.{host}x.{os.geteuid()}.dead0001.0"),
              make(f"vader_segment.{host}.{os.geteuid() + 1}.dead0001.0"), make("a file")]
    hold = "import mmap, sys; file = open(sys.argv[1], 'r+b'); memory = mmap.mmap(file.fileno(), 4096); file.close(); " \
           "print('mapped', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, str(mapped)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as holder:
        assert holder.stdout.readline() == "mapped\n"
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
            apart = []  # no such namespaces for this user
        done = subprocess.run([*apart, MPIRUN, "-np", "2", "-x",
                               f"OMPI_MCA_btl_vader_backing_directory={folder.resolve()}", DPTRAIN, "--print-config"],
                              capture_output=True, text=True, timeout=60)
        holder.communicate("")
    assert done.returncode == 0, done.stderr
    left = {path.resolve() for path in folder.iterdir()}
    assert left == {mapped, young, *others}, left


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    globals()[CASE]()
    os.chdir("/")
