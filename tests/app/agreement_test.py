#!/usr/bin/env python3
"""What ranks compare before the first step, and --check: agreement_test.py DPTRAIN MPIRUN CASE [OTHER]."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

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


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    globals()[CASE]()
    os.chdir("/")
