"""Runs commands that do not outlive this program, whatever ends it, SIGKILL too.

mpirun gives every rank a process group of its own, so that no signal to a group reaches them; mpirun and dplab end
their ranks when they are told to. The keeper (keeper.py), a process of its own between this one and the command, sees
to it. SIGINT, SIGTERM and SIGHUP end the running command before they end this program.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from .study import fail

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEEPER = pathlib.Path(__file__).resolve().with_name("keeper.py")


class Stopped(BaseException):
    """A signal that ends dpsweep has arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Jobs:
    def __init__(self, patience_s: float = 15.0) -> None:  # dplab itself has a patience of 10 s
        self._patience_s = patience_s
        self._first = 0  # the signal that ends this program; later ones are ignored
        self._is_held = False
        self.lock: list[int] = []  # the file whose lock is held until the running command has ended, too
        for number in _WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's SIGHUP stays ignored
                signal.signal(number, self._arrive)

    def _arrive(self, number: int, _frame: object) -> None:
        if self._first == 0:
            self._first = number
            if not self._is_held:
                raise Stopped(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What must not be interrupted; a signal that arrives within is raised at the end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._first:
            raise Stopped(self._first)

    def run(self, command: list[str], may_leave_processes: bool = False, **options: object) -> int:
        """The exit code, of a command that a signal has ended as a shell tells it: 128 + its number. What the command
        leaves running is killed, unless it may leave something."""
        if shutil.which(command[0]) is None:
            fail(f"{command[0]}: there is no such program" +
                 ("; apt-get install openmpi-bin" if command[0] == "mpirun" else ""))
        process = None
        lifeline, held = os.pipe()
        try:
            with self.held():
                # In a session of its own Ctrl-C does not reach it, so that it is told to end once, by us.
                process = subprocess.Popen(
                    [sys.executable, "-IS", _KEEPER, str(lifeline), str(self._patience_s),
                     "leave" if may_leave_processes else "end", *command],
                    stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(lifeline, *self.lock), **options)
            code = process.wait()
            return 128 - code if code < 0 else code
        finally:
            with self.held():
                os.close(lifeline)
                os.close(held)
                if process:
                    process.wait()
