#!/usr/bin/env python3
"""What ranks compare before the first step, --check, and strangers: agreement_test.py DPTRAIN MPIRUN CASE [OTHER]."""
import os
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

DPTRAIN, MPIRUN, CASE, *OTHER = sys.argv[1:]
SMALL = ["--model", "resnet20", "--limit-train", "64", "--limit-test", "16", "--epochs", "1", "--batch-size", "16",
         "--threads", "1", "--autotune", "off", "--log", "none"]


def job(*ranks: list[str]) -> subprocess.CompletedProcess:
    """A rank for each list of words: what comes before dptrain's options is mpirun's."""
    words = [word for rank in ranks for word in (":", "-np", "1", *rank)][1:]
    return subprocess.run([MPIRUN, *words], capture_output=True, text=True, timeout=400)


def complaint(done: subprocess.CompletedProcess, code: int) -> str:
    said = [line for line in done.stderr.splitlines() if line.startswith("dptrain: ")]
    assert done.returncode == code and len(said) == 1 and "epoch" not in done.stdout, (done, said)
    return said[0]


def different_options() -> None:
    same = [DPTRAIN, *SMALL]
    said = complaint(job([*same, "--lr", "0.1"], [*same, "--lr", "0.1"], [*same, "--lr", "0.2"]), 2)
    assert re.fullmatch(r"dptrain: rank 2 on host \S+ was started with --lr 0.2, rank 0 with 0.1: all ranks need the same "
                        "options", said), said
    # From a file, which the ranks name in the same way; other words with the same meaning are no difference.
    for rank, rate in enumerate(("0.1", "0.3")):
        os.makedirs(str(rank))
        pathlib.Path(f"{rank}/run.ini").write_text(f"lr = {rate}\n", encoding="ascii")
    said = complaint(job([*same, "--config", "0/run.ini"], [*same, "--config", "1/run.ini"]), 2)
    assert "rank 1 " in said and "--lr 0.3, rank 0 with 0.1" in said, said
    said = complaint(job([*same], [*same, "--epochs", "2"]), 2)
    assert "rank 1 " in said and "was started with other options than rank 0: --epochs" in said, said
    done = job([*same, "--config", "0/run.ini"], [*same, "--lr", "0.1"])
    assert done.returncode == 0 and "epoch 1/1" in done.stdout, done


def different_builds() -> None:
    said = complaint(job([DPTRAIN, *SMALL], [OTHER[0], *SMALL]), 2)
    assert re.fullmatch(r"dptrain: rank 1 on host \S+ is dptrain \S+ of revision \S+, build [0-9a-f]{16}, with Open MPI \S+; "
                        r"rank 0 on host \S+ is dptrain \S+ of revision \S+, build [0-9a-f]{16}, .*: all hosts need the "
                        "same program .*", said), said


def check_on_one_host() -> None:
    done = job(*[[DPTRAIN, "--check", *SMALL, "--compress", "q8"]] * 2)
    assert done.returncode == 0, done
    for text in ("64 training and 16 test images, the same on all ranks", "memory needed", "disk of rank 0: nothing is written",
                 "a rank sends a step", "trains like fp32, the run's", "advice: --compress ", "go: this run can start"):
        assert text in done.stdout, (text, done.stdout)
    assert re.search(r"program: revision \S+, build [0-9a-f]{16}, Open MPI \S+: the same on all ranks", done.stdout), done
    assert os.listdir(".") == [], "something is left"
    done = job([DPTRAIN, "--check", *SMALL])
    assert done.returncode == 0 and "go: this run can start" in done.stdout, done


def check_finds_problems() -> None:
    log = SMALL.index("--log") + 1
    # More memory than most machines have: the activations of 65,536 images.
    large = list(SMALL)
    for name, value in (("--model", "resnet18"), ("--limit-train", "65536"), ("--batch-size", "65536")):
        large[large.index(name) + 1] = value
    done = job([DPTRAIN, "--check", *large])
    assert done.returncode == 5 and "no go" in done.stdout and "memory" in done.stderr, done
    # A folder that is not there.
    done = job([DPTRAIN, "--check", *SMALL[:log], "nowhere/run.h5", *SMALL[log + 1:]])
    assert done.returncode in (2, 3) and "nowhere" in done.stderr and "epoch" not in done.stdout, done
    done = job([DPTRAIN, "--check", *SMALL, "--data-dir", "nowhere"])
    assert done.returncode in (2, 3) and "nowhere" in done.stderr, done


# ---- strangers ----

def listening_ports(processes: list[int]) -> set[tuple[int, int]]:
    """(address family, port) of the sockets on which these processes listen."""
    inodes = set()
    for process in processes:
        for file in pathlib.Path(f"/proc/{process}/fd").iterdir():
            try:
                target = os.readlink(file)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in pathlib.Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add((family, int(words[1].rsplit(":", 1)[1], 16)))
    return ports


def descendants(ancestor: int) -> list[int]:
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
        except OSError:
            continue
    family = [ancestor]
    for member in family:
        family += [process for process, parent in parents.items() if parent == member]
    return family


def bother(ports: set[tuple[int, int]]) -> list[socket.socket]:
    """Connects to each port with noise, halves of Open MPI's greeting, and nothing. Open MPI waits for up to two seconds
    for the rest of a greeting, so these are few. The connections stay until they are closed."""
    noise, sockets = random.Random(1), []
    greeting = b"OMPI-TCP-BTL\0" + bytes(3)  # the word of btl tcp; a sender's name is in front of it or behind
    for family, port in ports:
        for text in (noise.randbytes(4096), b"GET / HTTP/1.0\r\n\r\n", bytes(4096), greeting + noise.randbytes(8),
                     struct.pack(">II", 1, 1) + greeting, greeting[:5], b""):
            try:
                link = socket.socket(family, socket.SOCK_STREAM)
                link.settimeout(1)
                sockets.append(link)
                link.connect(("127.0.0.1" if family == socket.AF_INET else "::1", port))
                link.sendall(text)
            except OSError:
                continue
    return sockets


def strangers_at_the_ports() -> None:
    """Noise at the ranks' ports changes no bit and does not end a run; or it ends it with an error, never unnoticed."""
    try:
        import h5py
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    words = [MPIRUN, "-np", "3", "--mca", "btl", "tcp,self", DPTRAIN, *SMALL, "--compress", "q8"]
    words[words.index("--limit-train") + 1] = "320"

    def hashes(log: str) -> list[int]:
        with h5py.File(log) as file:
            return list(file["epochs"]["replica_hash"])

    def with_log(log: str) -> list[str]:
        place = words.index("--log") + 1
        return [*words[:place], log, *words[place + 1:]]

    done = subprocess.run(with_log("alone.h5"), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done
    process = subprocess.Popen(with_log("bothered.h5"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ports: set[tuple[int, int]] = set()
    end = time.monotonic() + 30
    while len(ports) < 3 and process.poll() is None and time.monotonic() < end:
        ranks = [p for p in descendants(process.pid)[1:] if os.path.exists(f"/proc/{p}/fd")]
        try:
            ports = listening_ports(ranks)
        except OSError:
            continue
    assert len(ports) >= 3, f"the ranks listen on {ports}"
    strangers = bother(ports)
    try:
        _, err = process.communicate(timeout=400)
    finally:
        for link in strangers:
            link.close()
        if process.poll() is None:
            process.kill()
            process.wait()
    print(f"{len(strangers)} connections to {len(ports)} ports; exit code {process.returncode}\n{err}")
    if process.returncode == 0:
        assert hashes("bothered.h5") == hashes("alone.h5")
    else:
        assert err.strip(), "the run ended without a word"


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    globals()[CASE]()
    os.chdir("/")
