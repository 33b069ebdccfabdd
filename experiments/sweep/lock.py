"""Only one dpsweep runs points into a folder at a time.

The kernel locks a file in the folder. The lock ends with the processes that hold it: dpsweep, and the keeper of the
command that it runs. So the ranks of a killed dpsweep are gone before another one removes what they write.
"""
from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import socket
import time
from collections.abc import Iterator

from lab.command_line import say
from lab.new_files import NOT_OWN, open_own
from lab.settings import NO_LOCKS_HERE

from .jobs import Jobs
from .study import UNUSABLE, fail

_NAME = ".dpsweep.lock"
_PATIENCE_S = 30.0  # a keeper ends what a killed dpsweep has left within this time


def _holder(file: int) -> tuple[str, bool]:
    """The process that has written itself into the file, and whether it has ended."""
    words = os.pread(file, 1000, 0).decode(errors="replace").strip().split("\t")
    if len(words) != 3:  # it is about to
        return "another process", True
    process, host, since = words
    has_ended = host == socket.gethostname() and process.isdigit() and not os.path.exists(f"/proc/{process}")
    return f"process {process} on {host}, since {since}", has_ended


def _try_lock(folder: pathlib.Path, file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        say(f"{folder}: its file system has no locks, so see to it yourself that no second dpsweep uses this folder")
    return True


@contextlib.contextmanager
def folder_locked(folder: pathlib.Path, jobs: Jobs) -> Iterator[None]:
    path = folder / _NAME
    try:
        file = open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno not in NOT_OWN:
            raise
        fail(f"{path}: must be a file that dpsweep has made, and is a link or something else; remove it, or name another "
             "folder by --out", UNUSABLE)
    end_s = time.monotonic() + _PATIENCE_S
    while not _try_lock(folder, file):
        holder, has_ended = _holder(file)
        if not has_ended or time.monotonic() > end_s:
            fail(f"{folder}: another dpsweep runs in this folder ({holder}): wait for it or end it, or name another "
                 "folder by --out", UNUSABLE)
        time.sleep(0.05)
    try:
        os.ftruncate(file, 0)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        os.pwrite(file, f"{os.getpid()}\t{socket.gethostname()}\t{now}\n".encode(), 0)
        jobs.lock = [file]
        yield
    finally:
        jobs.lock = []
        os.close(file)
