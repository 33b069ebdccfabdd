"""Runs commands that end with this program, whatever ends it, also SIGKILL.

mpirun puts every rank into its own process group, so a signal to a group does not reach them. mpirun and dplab end
their ranks when they are told to. The keeper (keeper.py), a process between this one and the command, tells them.
SIGINT, SIGTERM and SIGHUP end the running command before they end this program.
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
    def __init__(self, patience_s: float = 15.0) -> None:  # dplab itself waits for 10 s
        self._patience_s = patience_s
        self._first = 0  # the signal that ends this program; later ones are ignored
        self._is_held = False
        self.lock: list[int] = []  # the file whose lock is also held until the running command has ended
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
        """A block that must not be interrupted. A signal that arrives in it is raised at its end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._first:
            raise Stopped(self._first)

    def run(self, command: list[str], may_leave_processes: bool = False, **options: object) -> int:
        """The exit code; as in a shell, 128 + the number of the signal that ended the command. Processes that the
        command leaves running are killed, unless it may leave some."""
        if shutil.which(command[0]) is None:
            fail(f"{command[0]}: there is no such program" +
                 ("; apt-get install openmpi-bin" if command[0] == "mpirun" else ""))
        process = None
        lifeline, held = os.pipe()
        try:
            with self.held():
                # In its own session Ctrl-C does not reach it, so it is told to end only once, by us.
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
