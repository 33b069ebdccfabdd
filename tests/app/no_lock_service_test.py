#!/usr/bin/env python3
"""Files on a file system whose flock() fails: no_lock_service_test.py DPTRAIN DPTRAIN_PACK LIBRARY EXPERIMENTS CASE."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

from image_trees import write_tree

DPTRAIN, PACK, LIBRARY, EXPERIMENTS, CASE = sys.argv[1:6]
SMALL = ("--model", "resnet20", "--batch-size", "8", "--threads", "1", "--autotune", "off")


def run(*words: str) -> str:
    done = subprocess.run(words, env=os.environ | {"LD_PRELOAD": LIBRARY}, capture_output=True, text=True, timeout=100)
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"exit {done.returncode}\n{output}"
    return output


def train(*options: str) -> str:
    return run(DPTRAIN, *SMALL, *options)


def packs() -> None:
    write_tree(pathlib.Path("photos"))
    run(PACK, "photos", "photos.h5")
    assert "16 training and 8 test images" in train("--data-dir", "photos.h5", "--epochs", "1", "--log", "none")


def weights() -> None:
    synthetic = ("--limit-train", "16", "--limit-test", "8")
    train("--epochs", "1", "--log", "a.h5", "--export", "w.h5", *synthetic)
    train("--epochs", "0", "--log", "none", "--init", "w.h5", *synthetic)
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    run(sys.executable, f"{EXPERIMENTS}/weights.py", "to-torch", "w.h5", "w.pt")
    run(sys.executable, f"{EXPERIMENTS}/weights.py", "from-torch", "w.pt", "again.h5", "--model", "resnet20")


def tools() -> None:
    """The labs' settings, and a log that a sweep looks at."""
    run(sys.executable, "-c", f"""
import sys
sys.path.insert(0, {EXPERIMENTS!r})
from lab import settings
with open('settings.json', 'w+') as file:
    settings._lock(file, settings.fcntl.LOCK_EX)
""")
    try:
        import h5py  # noqa: F401
    except ImportError:
        print("skipped: h5py; apt-get install python3-h5py")
        sys.exit(77)
    train("--epochs", "1", "--log", "a.h5", "--limit-train", "16", "--limit-test", "8")
    found = run(sys.executable, "-c", f"""
import pathlib, sys
sys.path.insert(0, {EXPERIMENTS!r})
from sweep import finished
print(finished.damage_of(pathlib.Path('a.h5')) or 'good')
""")
    assert found.strip() == "good", found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        globals()[CASE]()
        os.chdir("/")
