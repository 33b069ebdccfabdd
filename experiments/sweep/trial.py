"""Lets dptrain check the options of all points before the first one runs, so that a wrong one costs no time."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess

from lab.settings import shown

from .links import Links
from .study import UNUSABLE, Point, fail

_PATIENCE_S = 60
_AT_ONCE = 8  # most of it is MPI's start, during which a process waits
_OWN_CODES = (2, 3, 4, 5, 70)  # dptrain's


def check_program(program: pathlib.Path) -> None:
    if not program.is_file() or not os.access(program, os.X_OK):
        fail(f"--dptrain {program}: must be the program dptrain; build it first (experiments/build.sh)")


def _judge(point: Point, program: pathlib.Path, code: int, output: str, errors: str) -> None:
    said = [line.removeprefix("dptrain: ") for line in errors.splitlines() if line.startswith("dptrain: ")]
    if code in _OWN_CODES and said:
        fail(f"{point.name}: {said[0]}", code)
    if code != 0 or not re.search("^log = ", output, re.MULTILINE):
        last = (errors.strip() or "it printed no configuration").splitlines()[-1]
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        fail(f"--dptrain {program}: must be the program dptrain, and {program} --print-config ended with {how}: "
             f"{shown(last)}")


def _trial(command: list[str], links: Links) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            errors="replace", env=links.environment)


def try_options(points: list[Point], program: pathlib.Path, links: Links) -> None:
    """Ends the program with dptrain's message and exit code if it refuses a point's options."""
    chosen = {tuple(links.options(point)): point for point in reversed(points)}  # the first of equal points
    left = list(reversed(chosen.items()))
    while left:
        trials: list[tuple[Point, subprocess.Popen[str]]] = []
        try:
            for options, point in left[:_AT_ONCE]:
                command = [str(program.absolute()), "--print-config", *options, "--log", "none"]
                trials.append((point, _trial(command, links)))
            for place, (point, trial) in enumerate(trials):
                output, errors = trial.communicate(timeout=_PATIENCE_S)
                if trial.returncode < 0:  # it crashed, as MPI's start sometimes does when many processes start at once
                    trial = _trial(trial.args, links)
                    trials[place] = point, trial
                    output, errors = trial.communicate(timeout=_PATIENCE_S)
                _judge(point, program, trial.returncode, output, errors)
        except subprocess.TimeoutExpired:
            fail(f"--dptrain {program}: must be the program dptrain, and {program} --print-config does not end")
        except OSError as error:
            fail(f"--dptrain {program}: cannot be started: {error.strerror}", UNUSABLE)
        finally:
            for _, trial in trials:
                if trial.poll() is None:
                    trial.kill()
                trial.wait()
        left = left[_AT_ONCE:]
