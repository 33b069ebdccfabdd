"""Runs points, one after the other."""
from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import time

from lab.command_line import say
from lab.new_files import begin_file, whole_file

from .finished import aside
from .jobs import Jobs
from .links import Links
from .progress import Folder, memory_is_full
from .study import Point

_DEVICE_ERROR, _KILLED = 5, 137  # dptrain's exit code, and a shell's word for SIGKILL
_LEAST_SPACE_BYTES = 1 << 17  # a run's log and text need more


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _full_memory(code: int, text: str) -> str:
    """The message of a run that ended because the memory was full; empty if it ended for another reason."""
    if code == _KILLED:
        return "the run was killed, as it happens when the host's memory is full"
    if code == _DEVICE_ERROR:
        for line in text.splitlines():
            if line.startswith("dptrain: ") and "out of memory" in line:
                return line.removeprefix("dptrain: ")
    return ""


def _need_space(folder: Folder, text: str) -> None:
    """Stops if the disk is full, or was for the run that printed the text, because the next points would fail, too."""
    if os.strerror(errno.ENOSPC) in text:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.path))
    with tempfile.TemporaryFile(dir=folder.path) as file:
        file.write(bytes(_LEAST_SPACE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _keep_aside(point: Point, folder: Folder) -> None:
    for path in (folder.log(point), folder.text(point)):
        if path.exists():
            path.rename(aside(path))


def run_points(missing: list[Point], folder: Folder, links: Links, jobs: Jobs) -> list[str]:
    """Runs the points and returns the names of those that failed."""
    failures: list[str] = []
    left, count, begin = list(missing), 0, time.monotonic()
    while left:
        point = left.pop(0)
        seconds = (time.monotonic() - begin) / count * (len(left) + 1) if count else 0
        count += 1
        say(f"[{count}/{count + len(left)}] {point.name}" + (f", about {_duration(seconds)} left" if seconds else ""))
        part, text = folder.part(point), folder.text(point)
        if folder.log(point).exists():
            _keep_aside(point, folder)
        part.unlink(missing_ok=True)
        folder.full(point).unlink(missing_ok=True)
        links.prepare(point)
        with open(begin_file(text), "w", encoding="utf-8", errors="surrogateescape") as output:
            output.write(links.line(point, part) + "\n")
            output.flush()
            code = jobs.run(links.command(point, part), stdout=output, stderr=subprocess.STDOUT,
                            env=links.environment)
        if code == 0 and part.exists():
            part.rename(folder.log(point))
            continue
        printed = text.read_text(encoding="utf-8", errors="replace")
        why = _full_memory(code, printed) if point.may_fill_memory else ""
        if why:
            with whole_file(folder.full(point)) as full:
                full.write((why + "\n").encode())
            left = [other for other in left if other.section != point.section]
            say(f"    {memory_is_full(point, why)}")
        else:
            failures.append(point.name)
            say(f"    ended with exit code {code}{'' if code else ', but without a log'}: see {text}")
            _need_space(folder, printed)
    return failures
