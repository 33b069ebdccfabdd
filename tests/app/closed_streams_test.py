#!/usr/bin/env python3
"""Programs that are started without some of the descriptors 0, 1 and 2: closed_streams_test.py CASE PROGRAM.

The next file that such a program opens would get the free number, and would be taken for its output. All eight
combinations are tried.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

CASE, PROGRAM = sys.argv[1:3]
HDF5 = b"\x89HDF\r\n\x1a\n"
# What the numbers stand for after the call.
LIBRARY = """
import ctypes, os, sys
library, said = sys.argv[1:]
code = ctypes.CDLL(library).dptrain_comm_init()
names = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
with open(said, "w") as file:
    print(code, names, file=file)
os._exit(0)
"""


def start(words: list[str], closed: int) -> tuple[int, str]:
    """The exit code and the printed text of a program for which the descriptors in the bits of `closed` are closed."""
    names = [f"{number}>&-" for number in range(3) if closed & 1 << number]
    done = subprocess.run(["sh", "-c", " ".join(['exec "$@"', *names]), "sh", *words], capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL,
                          env=os.environ | {"OMPI_MCA_rmaps_base_oversubscribe": "1"})
    return done.returncode, done.stdout + done.stderr


def has_output(closed: int) -> bool:
    return not closed & 2


def dptrain(closed: int) -> None:
    code, said = start([PROGRAM, "--model", "resnet20", "--limit-train", "16", "--limit-test", "8", "--epochs", "1",
                        "--batch-size", "8", "--threads", "1", "--autotune", "off", "--log", "log.h5", "--checkpoint",
                        "d", "--export", "weights.h5", "--trace", "trace.json", "--trace-steps", "0:1"], closed)
    assert code == (0 if has_output(closed) else 3), (closed, code, said)
    assert has_output(closed) == ("The log is log.h5" in said), (closed, said)
    for name in ("log.h5", "weights.h5"):
        assert pathlib.Path(name).read_bytes().startswith(HDF5), (closed, name)
    assert pathlib.Path("trace.json").read_text().rstrip().endswith(("]", "}")), closed
    assert list(pathlib.Path("d").iterdir()), closed


def dpbench(closed: int) -> None:
    code, said = start([PROGRAM, "layers", "--model", "resnet20", "--batch", "2", "--steps", "1", "--threads", "1", "--autotune", "off"], closed)
    assert code == (0 if has_output(closed) else 3), (closed, code, said)


def dptrain_pack(closed: int) -> None:
    image = pathlib.Path("photos/one/a.png")
    image.parent.mkdir(parents=True)
    image.write_bytes(b"no image")
    code, said = start([PROGRAM, "photos", "photos.h5"], closed)
    assert code == 3, (closed, code, said)
    assert (not closed & 4) == ("dptrain-pack: " in said), (closed, said)


def library(closed: int) -> None:
    code, said = start(["/usr/bin/python3", "-I", "-c", LIBRARY, PROGRAM, "said"], closed)
    answer = pathlib.Path("said").read_text()
    assert code == 0 and answer.startswith("0 "), (closed, code, said, answer)
    assert answer.count("/dev/null") == bin(closed | 1).count("1"), (closed, answer)  # 0 is that in any case


for which in range(8):
    folder = tempfile.mkdtemp()
    try:
        os.chdir(folder)
        globals()[CASE](which)
    finally:
        os.chdir("/")
        shutil.rmtree(folder)
