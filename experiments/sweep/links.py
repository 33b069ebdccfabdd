"""How a point is started: by mpirun, with links that dptrain's --throttle makes slow, or on the hosts of
experiments/dplab.

The first line of a point's text has the whole command. It is read again to see whether a run was the same.
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
_MPIRUN_WORDS = 7  # up to the program, which is included


class Links:
    def __init__(self, is_lab: bool, dptrain: pathlib.Path, jobs: Jobs) -> None:
        self._lab = f"sweep{os.getpid()}" if is_lab else ""
        self._has_lab = False
        self._up: list[str] = []  # the command that made the present lab
        self._program = os.path.realpath(dptrain)
        self._jobs = jobs
        self.environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def _lab_of(self, point: Point) -> list[str]:
        """The command that makes the lab of a point, if it has one."""
        if not self._lab or point.ranks == 1 or point.rate == "off":
            return []
        delay = ["--delay", point.delay] if point.delay != "off" else []
        return [str(DPLAB), "up", "--lab", self._lab, "--nodes", str(point.ranks), "--rate", point.rate, *delay]

    def options(self, point: Point) -> list[str]:
        """dptrain's options without the log."""
        is_throttled = point.rate != "off" and not self._lab_of(point)
        return [*(["--throttle", point.rate] if is_throttled else []), *point.options]

    def command(self, point: Point, log: pathlib.Path) -> list[str]:
        if self._lab_of(point):
            words = [str(DPLAB), "run", "--lab", self._lab, "--", self._program]
        else:
            words = ["mpirun", "-np", str(point.ranks), "--oversubscribe", "--bind-to", "none", self._program]
        return [*words, *self.options(point), "--log", str(log)]

    def line(self, point: Point, log: pathlib.Path) -> str:
        """The command as a reader would type it into a shell."""
        up = self._lab_of(point)
        return _START + (shlex.join(up) + " && " if up else "") + shlex.join(self.command(point, log))

    def prepare(self, point: Point) -> None:
        """Makes the lab that this point needs, unless it is the present one."""
        up = self._lab_of(point)
        if up and up != self._up:
            self._up, self._has_lab = [], True
            # The lab ends with this process, also if this is killed.
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
    """What identifies a run: all of line() except the paths of programs and of the log, and the lab's name. Empty
    if it is no such line."""
    try:
        words = shlex.split(line.removeprefix(_START))
        if words[0] == "mpirun":
            options = words[_MPIRUN_WORDS:]
            settings = {"ranks": words[2], "links": "--throttle" if "--throttle" in options[::2] else "unthrottled"}
        else:
            up, options = words[2:words.index("&&")], words[words.index("--") + 2:]
            given = dict(zip(up[::2], up[1::2]))
            settings = {"ranks": given["--nodes"], "links": "dplab", "rate": given["--rate"]}
            settings |= {"delay": given["--delay"]} if "--delay" in given else {}
    except (ValueError, KeyError, IndexError):
        return {}
    settings |= dict(zip(options[::2], options[1::2]))
    settings.pop("--log", None)
    return settings
