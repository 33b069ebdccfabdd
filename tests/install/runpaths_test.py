#!/usr/bin/env python3
"""No program or library, built or installed, looks for libraries in the current folder: runpaths_test.py CMAKE BUILD.

An empty or relative element of RPATH or RUNPATH stands for a place in the current folder, and so does a needed library
whose name has a folder in it. "$ORIGIN" is the folder of the file itself.
"""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CMAKE, BUILD = sys.argv[1:]
COMPONENTS = ("programs", "library", "debian_library", "wheel")


def elf_files(root: pathlib.Path) -> list[str]:
    """Programs and shared libraries below the folder, but not the objects that they are made of."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "CMakeFiles"]
        for path in (os.path.join(folder, name) for name in names if not name.endswith((".o", ".a"))):
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        found.append(path)
    return found


def faults(line: str) -> list[str]:
    """The bad elements of one line of readelf."""
    paths = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", line)
    if paths:
        return [element or "(empty)" for element in paths[1].split(":")
                if not re.match(r"/|\$ORIGIN(/|$)", element)]
    needed = re.search(r"\(NEEDED\).*\[(.*)\]", line)
    return [needed[1]] if needed and "/" in needed[1] and not needed[1].startswith("/") else []


def check(files: list[str]) -> list[str]:
    bad = []
    for begin in range(0, len(files), 50):
        part = files[begin:begin + 50]
        answer = subprocess.run(["readelf", "-dW", *part], capture_output=True, text=True, check=True,
                                env=os.environ | {"LC_ALL": "C"})
        name = part[0]
        for line in answer.stdout.splitlines():
            if line.startswith("File: "):
                name = line[len("File: "):]
            bad += [f"{name}: {fault}" for fault in faults(line)]
    return bad


def main() -> None:
    if shutil.which("readelf") is None:
        print("skipped: no readelf; apt-get install binutils")
        sys.exit(77)
    for line, expected in ((" 0x1d (RUNPATH) Library runpath: [/usr/lib:]", ["(empty)"]), ("(RPATH) x: [lib]", ["lib"]),
                           ("(RUNPATH) x: [$ORIGIN/../lib:/opt/a]", []), ("(RUNPATH) x: [$ORIGINAL]", ["$ORIGINAL"]),
                           ("(NEEDED) Shared library: [libm.so.6]", []), ("(NEEDED) x: [lib/a.so]", ["lib/a.so"])):
        assert faults(line) == expected, (line, faults(line))
    prefix = tempfile.mkdtemp()
    try:
        for component in COMPONENTS:
            subprocess.run([CMAKE, "--install", BUILD, "--component", component, "--prefix", prefix], check=True,
                           stdout=subprocess.DEVNULL)
        installed = elf_files(pathlib.Path(prefix))
        names = {os.path.basename(path).split(".so")[0] for path in installed}
        assert {"dptrain", "dptrun", "dpbench", "dptrain-pack", "libdptrain_comm"} <= names, names
        bad = check(installed + elf_files(pathlib.Path(BUILD)))
        assert not bad, "\n".join(bad)
    finally:
        shutil.rmtree(prefix)


main()
