#!/usr/bin/env python3
"""What ranks compare before the first step, --check, --plan, and strangers: agreement_test.py DPTRAIN MPIRUN CASE [OTHER]."""
import os
import pathlib
import random
import re
import signal
import socket
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
    return subprocess.run([MPIRUN, *words], capture_output=True, text=True, timeout=100)


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
    assert re.fullmatch(r"dptrain: rank 1 on host \S+ is dptrain \S+ of revision \S+, build [0-9a-f]{16} for \S+, with Open MPI \S+; "
                        r"rank 0 on host \S+ is dptrain \S+ of revision \S+, build [0-9a-f]{16} for .*: all hosts need the "
                        "same program .*", said), said


def check_on_one_host() -> None:
    done = job(*[[DPTRAIN, "--check", *SMALL, "--compress", "q8"]] * 2)
    assert done.returncode == 0, done
    for text in ("64 training and 16 test images, the same on all ranks", "memory needed", "disk of rank 0: nothing is written",
                 "network: one host, ", "bit/s between its ranks\n", "go: this run can start"):
        assert text in done.stdout, (text, done.stdout)
    assert re.search(r"program: revision \S+, build [0-9a-f]{16} for \S+, Open MPI \S+: the same on all ranks", done.stdout), done
    assert os.listdir(".") == [], "something is left"
    done = job([DPTRAIN, "--check", *SMALL])
    assert done.returncode == 0 and "go: this run can start" in done.stdout, done
    # What the run itself would refuse.
    for code, text, words in ((2, "but adam cannot leave its momentum to a codec", ("--compress", "dgc", "--optimizer", "adam")),
                              (3, "no_such.h5", ("--init", "no_such.h5")),
                              (2, "--trace-steps 1000:5: the run has 2 steps", ("--trace", "t.json", "--trace-steps", "1000:5")),
                              (2, "must have batches of 2 images or more", ("--batch-schedule", "2:1"))):
        done = job(*[[DPTRAIN, "--check", *SMALL, *words]] * 2)
        assert done.returncode == code and text in done.stderr and "no go" in done.stdout, (words, done)
    # Folders that the run makes are not made yet.
    for folder in ("new", "new/", "new/and/deep"):
        done = job(*[[DPTRAIN, "--check", *SMALL, "--checkpoint", folder, "--tensorboard", "new/events"]] * 2)
        assert done.returncode == 0 and not os.listdir("."), (folder, done)
        # Weights and momentum of 269,722 numbers, and of BatchNorm 1,376 statistics; 3 checkpoints of 2 ranks.
        assert re.search(r"disk of rank 1: checkpoints in \.: writable, \S+ [kMGT]?B free, 13.0 MB needed \(3 checkpoints, one "
                         r"more than --checkpoint-keep, of 2 ranks\)\n", done.stdout), done.stdout
    assert not os.path.exists("t.json")


def check_on_a_gpu() -> None:
    small = ["2" if word == "16" else word for word in SMALL]
    done = job(*[[DPTRAIN, "--check", *small, "--device", "cuda"]] * 2)
    assert done.returncode == 0 and "go: this run can start" in done.stdout, done
    # A batch whose activations are larger than the GPU's memory, found by a step of 16 images.
    large = list(SMALL)
    for name in ("--limit-train", "--batch-size"):
        large[large.index(name) + 1] = "4096"
    done = job([DPTRAIN, "--check", *large, "--device", "cuda"])
    assert done.returncode == 5 and "no go" in done.stdout and "memory" in done.stderr, done


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
    # A folder that cannot be made, and one without room: a million checkpoints of ResNet-18 are 90 TB.
    pathlib.Path("file").touch()
    done = job([DPTRAIN, "--check", *SMALL, "--checkpoint", "file/ck"])
    assert done.returncode == 3 and "file: cannot be written" in done.stderr, done
    model = SMALL.index("--model") + 1
    done = job([DPTRAIN, "--check", *SMALL[:model], "resnet18", *SMALL[model + 1:], "--checkpoint", "ck", "--checkpoint-keep",
                "1000000"])
    assert done.returncode == 3 and re.search(r"dptrain: disk: rank 0 on host \S+: checkpoints in \.: writable, .* free, "
                                              r"\S+ TB needed \(1,000,001 checkpoints", done.stderr), done
    done = job([DPTRAIN, "--check", *SMALL, "--data-dir", "nowhere"])
    assert done.returncode in (2, 3) and "nowhere" in done.stderr, done


def plan() -> None:
    done = job(*[[DPTRAIN, "--plan", *SMALL, "--compress", "q4:block=512"]] * 2)
    assert done.returncode == 0 and not done.stderr, done
    assert re.match(r"dptrain \S+ --plan: resnet20 on synthetic, from \d steps of 2 ranks, which compute \S+ m?s per step\n",
                    done.stdout), done.stdout
    assert "2 ranks x 16 images, one host, " in done.stdout, done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r"  (ring|direct) ", line)]
    # Every codec that --help lists, auto and the run's own.
    listed = job([DPTRAIN, "--help", "exchange"]).stdout.split("\nCodecs, for --compress\n")[1].split("\n\n")[0]
    known = set(re.findall(r"^  (\w+)", listed, re.M))
    assert {"none", "q8", "powersgd", "ecq"} <= known, known
    for topology in ("ring", "direct"):
        codecs = [row[1] for row in rows if row[0] == topology]
        assert known | {"auto", "q4:block=512"} <= set(codecs) and len(set(codecs)) == len(codecs), (known, codecs)
    assert all(re.fullmatch(r"\([0-9.]+", row[2]) and row[3] == "bits)" for row in rows if row[1] == "auto"), rows
    # The shortest step first.
    seconds = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    steps = [float(row[at]) * seconds[row[at + 1]] for row in rows for at in [4 if row[1] == "auto" else 2]]
    assert steps == sorted(steps), rows
    # Bytes as in the topologies' formulas: fp32 sends 4 bytes of each of 269,722 values.
    assert {tuple(row[-2:]) for row in rows if row[1] == "none"} == {("1.08", "MB")}, rows
    assert re.search(rf"^quickest: --topology {rows[0][0]} --compress {rows[0][1]}: ", done.stdout, re.M), done.stdout
    assert done.stdout.splitlines()[-1].startswith("accuracy: not predicted; experiments/README.md has"), done.stdout
    # One rank and a stated network: 1.5 times the gradient on a link that carries 9.56 Mbit/s takes 1.35 s.
    done = job([DPTRAIN, "--plan", "ranks=1/4,rates=10mbit/1gbit,delay-ms=5,codecs=none/topk:ratio=0.1,ef=off/q8,"
                "topologies=ring,batches=8/16,sync=1/20", *SMALL])
    assert done.returncode == 0 and not done.stderr, done
    assert len(re.findall(r"^quickest: ", done.stdout, re.M)) == 8, done.stdout
    table = done.stdout.split("4 ranks x 16 images, 10mbit and 5.00 ms one way\n")[1].splitlines()
    rows = {(words[0], words[2]): words for words in map(str.split, table[2:8])}
    assert set(rows) == {(sync, codec) for sync in ("off", "20") for codec in ("none", "topk:ratio=0.1,ef=off", "q8")}, table
    waits, unit = rows["off", "none"][7:9]
    assert unit == "s" and 1.2 < float(waits) < 1.6, table
    # An exchange once in 20 steps, of which nothing hides.
    waits, unit = rows["20", "none"][7:9]
    assert unit == "ms" and 60 < float(waits) < 80, table
    # What --sync-every auto would choose after an epoch at every step: waiting is far more than a tenth.
    done = job([DPTRAIN, "--plan", "ranks=4,rates=10mbit,codecs=none,topologies=ring", *SMALL, "--sync-every",
                "auto:max=20"])
    rows = [line.split() for line in done.stdout.splitlines() if " ring " in line and " none " in line]
    assert done.returncode == 0 and not done.stderr and [row[1 if row[0].isdigit() else 0:3] for row in rows[:2]] == [
        ["(auto)", "ring"], ["off", "ring", "none"]] and 1 < int(rows[0][0]) <= 20, done
    assert os.listdir(".") == [], "something is left"


# ---- strangers ----

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
    return family[1:]


def listening_ports(process: int) -> set[tuple[int, int]]:
    """(address family, port) of the sockets on which the process listens."""
    inodes, ports = set(), set()
    try:
        for file in pathlib.Path(f"/proc/{process}/fd").iterdir():
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(file)))
    except OSError:
        pass
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = pathlib.Path(f"/proc/net/{name}")
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else []:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add((family, int(words[1].rsplit(":", 1)[1], 16)))
    return ports


def bother(ports: set[tuple[int, int]]) -> list[socket.socket]:
    """Connects to each port with a part of Open MPI's greeting, with noise, and with nothing, and stays there."""
    noise, sockets = random.Random(1), []
    for family, port in sorted(ports):
        for text in (b"OMPI-", noise.randbytes(23), noise.randbytes(4096), b""):
            link = socket.socket(family, socket.SOCK_STREAM)
            link.settimeout(5)
            sockets.append(link)
            try:
                link.connect(("127.0.0.1" if family == socket.AF_INET else "::1", port))
                link.sendall(text)
            except OSError:
                continue  # MPI has closed it meanwhile, or listens on another address
    return sockets


def strangers_hold_nobody() -> None:
    """They connect to every port of both ranks, and stay: the run ends with the same bits and says who it was."""
    try:
        import h5py
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)

    def start(log: str) -> subprocess.Popen:
        options = [*SMALL, "--limit-train", "320", "--compress", "q8", "--throttle", "25mbit",  # 0.1 s a step
                   "--comm-timeout", "4", "--log", log]
        for name in ("--limit-train", "--log"):  # the first ones
            at = options.index(name)
            del options[at:at + 2]
        return subprocess.Popen([MPIRUN, "-np", "2", "--mca", "btl", "tcp,self", DPTRAIN, *options],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def hashes(log: str) -> list[int]:
        with h5py.File(log) as file:
            return list(file["epochs"]["replica_hash"])

    alone = start("alone.h5")
    _, err = alone.communicate(timeout=100)
    assert alone.returncode == 0, err
    run, strangers = start("bothered.h5"), []
    try:
        # Both ranks listen before they exchange anything.
        by_rank: list[set[tuple[int, int]]] = []
        end = time.monotonic() + 30
        while len(by_rank) < 2:
            assert time.monotonic() < end and run.poll() is None, by_rank
            by_rank = [ports for ports in map(listening_ports, descendants(run.pid)) if ports]
        strangers = bother(set().union(*by_rank))
        _, err = run.communicate(timeout=100)
    finally:
        for link in strangers:
            link.close()
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
            run.communicate()
    assert run.returncode == 0, (run.returncode, err)
    assert hashes("bothered.h5") == hashes("alone.h5")
    told = re.findall(r"^dptrain: a connection from (127.0.0.1|::1) to Open MPI's port of rank (\d) on host \S+ was closed: "
                      r"it had sent less than a greeting", err, re.MULTILINE)
    assert ("127.0.0.1", "0") in told and ("127.0.0.1", "1") in told and len(told) == len(set(told)), err


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    globals()[CASE]()
    os.chdir("/")
