#!/usr/bin/env python3
"""The tools import nothing from the current folder: planted_modules_test.py SOURCES.

The current folder has modules of the names that the tools import. Each leaves a file when it is executed.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

EXPERIMENTS = pathlib.Path(sys.argv[1]) / "experiments"
NAMES = ("h5py", "numpy", "pandas", "matplotlib", "torch", "wandb", "json", "importlib", "venv", "pip", "ensurepip",
         "argparse", "subprocess", "convert", "lab", "report", "sweep")
PLANTED = "import pathlib\npathlib.Path('executed').open('a').write(__name__ + ' ')\nraise ImportError\n"
# Every way on which a tool starts a Python: by itself, another Python of the PATH, its own environment, the lab's holder.
STARTS = {
    "dpreport": ["no.h5"],
    "dpsweep": ["study.ini", "--list"],
    "host_scan": ["--no-runs", "--svg", "plots"],
    "dplab": ["up", "--nodes", "2", "--lab", f"planted-{os.getpid()}"],
    "weights.py": ["to-torch", "no.h5", "no.pt"],
}
STUDY = "[study]\nranks = 1\noptions = --model resnet20\n[a]\nseed = 1\n"


def is_python(path: pathlib.Path) -> bool:
    return path.is_file() and path.open("rb").readline().rstrip().endswith(b"python3") and os.access(path, os.X_OK)


def main() -> None:
    tools = {path.name for path in EXPERIMENTS.iterdir() if is_python(path)}
    assert tools == set(STARTS), f"add to STARTS, or remove: {tools ^ set(STARTS)}"
    folder = tempfile.mkdtemp()
    try:
        os.chdir(folder)
        for name in NAMES:
            pathlib.Path(f"{name}.py").write_text(PLANTED)
        pathlib.Path("study.ini").write_text(STUDY)
        pathlib.Path("bin").mkdir()
        # Pythons without packages. The second has no packages of its user either, so that dpreport asks the first.
        bare = pathlib.Path("bin/python3")
        bare.write_text('#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n')
        bare.chmod(0o755)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
            "XDG_CACHE_HOME": f"{folder}/cache", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_CACHE_DIR": "1"}
        for tool, words in STARTS.items():
            for python, path in (([], ""), (["/usr/bin/python3", "-S"], f"{folder}/bin:")):
                subprocess.run([*python, str(EXPERIMENTS / tool), *words], stdin=subprocess.DEVNULL, capture_output=True,
                               timeout=60, check=False, env=variables | {"PATH": path + os.environ["PATH"]})
                if tool == "dplab":
                    subprocess.run([str(EXPERIMENTS / tool), "down", *words[3:]], capture_output=True, timeout=60,
                                   check=False, env=variables)
                executed = pathlib.Path("executed")
                assert not executed.exists(), f"{tool} has executed ./{executed.read_text()}"
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


main()
