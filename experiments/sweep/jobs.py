"""Runs commands that do not outlive this program: SIGINT, SIGTERM and SIGHUP end the running one first.

mpirun gives every rank a process group of its own, so that no signal to a group reaches them; mpirun and dplab end
their ranks when they are told to. What is left after some patience is killed, with all of its descendants.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator

from .study import fail

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal that ends dpsweep has arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _descendants(ancestor: int) -> set[tuple[int, str]]:
    """Process ids, each with its start time, which tells it from a later process of that id."""
    children: dict[int, set[tuple[int, str]]] = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rsplit(") ", 1)[1].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), set()).add((int(folder.name), fields[19]))
    found, new = set(), [ancestor]
    while new:
        for child in children.pop(new.pop(), set()):
            found.add(child)
            new.append(child[0])
    return found


def _is_running(process: tuple[int, str]) -> bool:
    with contextlib.suppress(OSError):
        fields = pathlib.Path(f"/proc/{process[0]}/stat").read_text(errors="replace").rsplit(") ", 1)[1].split()
        return fields[0] != "Z" and fields[19] == process[1]
    return False


class Jobs:
    def __init__(self, patience_s: float = 15.0) -> None:  # dplab itself has a patience of 10 s
        self._patience_s = patience_s
        self._first = 0  # the signal that ends this program; later ones are ignored
        self._is_held = False
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

    def run(self, command: list[str], **options: object) -> int:
        """The exit code, of a command that a signal has ended as a shell tells it: 128 + its number."""
        process = None
        try:
            with self.held():
                # In a group of its own Ctrl-C does not reach it, so that it is told to end once, by us.
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **options)
            code = process.wait()
            return 128 - code if code < 0 else code
        except FileNotFoundError:
            fail(f"{command[0]}: there is no such program" +
                 ("; apt-get install openmpi-bin" if command[0] == "mpirun" else ""))
        except BaseException:
            if process:
                self._end(process)
            raise

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        family = _descendants(process.pid)
        process.terminate()
        try:
            process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            family |= _descendants(process.pid)
            process.kill()
            process.wait()
        for member in filter(_is_running, family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member[0], signal.SIGKILL)
