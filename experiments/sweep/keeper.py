"""Runs a command and ends all of it when dpsweep ends. keeper.py LIFELINE PATIENCE_S end|leave COMMAND...

LIFELINE is the number of the reading end of a pipe. Only dpsweep has the other end. When dpsweep closes it or ends
in any way, the kernel tells this process. It then asks the command to end (SIGTERM) and after PATIENCE_S kills what
is left, with all descendants: those whose parent has ended become children of this process, whatever process group
or session they have made. It does the same when the command has ended by itself, unless the command may leave
processes behind ("leave"). Other files that this process was given, such as dpsweep's lock, stay open until then.

Exits as the command did, or with 128 + N if signal N has ended it.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import sys
import time
from typing import NoReturn

_SIGNAL_OF_PARENT_DEATH, _ADOPT_ORPHANS = 1, 36  # of prctl
_KILL_PATIENCE_S = 10.0  # a process that waits for a dead disk never ends

_libc = ctypes.CDLL(None)


def _execute(command: list[str], keeper: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores it, and the command would inherit that
            signal.signal(number, signal.SIG_DFL)
        _libc.prctl(_SIGNAL_OF_PARENT_DEATH, signal.SIGTERM, 0, 0, 0)  # in case somebody kills the keeper
        if os.getppid() == keeper:
            os.closerange(3, 256)
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _descendants() -> set[int]:
    """The children of this process, without those that have ended."""
    children: dict[int, set[int]] = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text(errors="replace").rsplit(") ", 1)[1].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), set()).add(int(folder.name))
    found, new = set(), [os.getpid()]
    while new:
        members = children.pop(new.pop(), set())
        found |= members
        new += members
    return found


class Family:
    """The command and its descendants."""

    def __init__(self, command: list[str]) -> None:
        self._codes: dict[int, int] = {}
        _libc.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
        keeper = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            _execute(command, keeper)
        self.ended = os.pidfd_open(self.child)

    def _collect(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._codes[found[0]] = os.waitstatus_to_exitcode(found[1])

    def kill(self) -> None:
        end_s = time.monotonic() + _KILL_PATIENCE_S
        while (members := _descendants()) and time.monotonic() < end_s:
            for member in members:
                with contextlib.suppress(OSError):
                    os.kill(member, signal.SIGKILL)
            time.sleep(0.01)
            self._collect()

    def exit_code(self) -> int:
        self._collect()
        code = self._codes.get(self.child, -signal.SIGKILL)
        return 128 - code if code < 0 else code


def main(lifeline: int, patience_s: float, leaves: bool, command: list[str]) -> int:
    family = Family(command)
    is_over = family.ended in select.select([lifeline, family.ended], [], [])[0]
    if not is_over:
        os.kill(family.child, signal.SIGTERM)
        select.select([family.ended], [], [], patience_s)
    if not is_over or not leaves:
        family.kill()
    return family.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "leave", sys.argv[4:]))
