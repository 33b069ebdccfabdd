"""How a point is started: by mpirun, with slow links by dptrain's --throttle, or on the hosts of experiments/dplab.

The first line of a point's text says the whole of it, and is read again to see whether a run was the same.
"""
from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys

from .jobs import Jobs
from .study import Point

DPLAB = pathlib.Path(__file__).resolve().parent.parent / "dplab"
_START = "+ "
_MPIRUN_WORDS = 7  # up to and with the program


class Links:
    def __init__(self, is_lab: bool, dptrain: pathlib.Path, jobs: Jobs) -> None:
        self._lab = f"sweep{os.getpid()}" if is_lab else ""
        self._has_lab = False
        self._up: list[str] = []  # the command that made the lab which there is
        self._program = os.path.realpath(dptrain)
        self._jobs = jobs
        self.environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def _lab_of(self, point: Point) -> list[str]:
        """The command that makes the lab of a point, if it has one."""
        if not self._lab or point.ranks == 1 or point.rate == "off":
            return []
        return [str(DPLAB), "up", "--lab", self._lab, "--nodes", str(point.ranks), "--rate", point.rate]

    def options(self, point: Point) -> list[str]:
        """dptrain's, but for the log."""
        is_throttled = point.rate != "off" and not self._lab_of(point)
        return [*(["--throttle", point.rate] if is_throttled else []), *point.options]

    def command(self, point: Point, log: pathlib.Path) -> list[str]:
        if self._lab_of(point):
            words = [str(DPLAB), "run", "--lab", self._lab, "--", self._program]
        else:
            words = ["mpirun", "-np", str(point.ranks), "--oversubscribe", "--bind-to", "none", self._program]
        return [*words, *self.options(point), "--log", str(log)]

    def line(self, point: Point, log: pathlib.Path) -> str:
        """The command for a reader: what a shell would be given."""
        up = self._lab_of(point)
        return _START + (shlex.join(up) + " && " if up else "") + shlex.join(self.command(point, log))

    def prepare(self, point: Point) -> None:
        """Makes the lab, if this point's is not the one that there is."""
        up = self._lab_of(point)
        if up and up != self._up:
            self._up, self._has_lab = [], True
            # The lab ends with this process, should that be killed.
            code = self._jobs.run([*up, "--while", str(os.getpid())], may_leave_processes=True,
                                  stdout=subprocess.DEVNULL)
            if code != 0:
                sys.exit(code)
            self._up = up

    def close(self) -> None:
        if self._has_lab:
            with self._jobs.held():
                subprocess.run([DPLAB, "down", "--lab", self._lab], check=False, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)


def settings_of_line(line: str) -> dict[str, str]:
    """What makes a run the one that it is: all of line() but for paths of programs, of the log, and the lab's name.
    Empty if it is no such line."""
    try:
        words = shlex.split(line.removeprefix(_START))
        if words[0] == "mpirun":
            options = words[_MPIRUN_WORDS:]
            settings = {"ranks": words[2], "links": "--throttle" if "--throttle" in options[::2] else "unthrottled"}
        else:
            up, options = words[2:words.index("&&")], words[words.index("--") + 2:]
            given = dict(zip(up[::2], up[1::2]))
            settings = {"ranks": given["--nodes"], "links": "dplab", "rate": given["--rate"]}
    except (ValueError, KeyError, IndexError):
        return {}
    settings |= dict(zip(options[::2], options[1::2]))
    settings.pop("--log", None)
    return settings
