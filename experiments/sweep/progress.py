"""What a folder already has of a study.

    NAME.h5          the log of a run that has ended well
    NAME.txt         what it printed, after a line with its command
    NAME.full        this run found the memory full: it is not run again, nor are those after it in its section
    NAME.part.h5     the log of a run that goes on, or was interrupted
    NAME.h5.damaged  a log that was NAME.h5 and cannot be read, or is not whole; NAME.txt.damaged is its text
"""
from __future__ import annotations

import dataclasses
import pathlib

from .finished import damage_of
from .links import Links, settings_of_line
from .study import Point

_LONGEST_LINE = 1 << 20  # characters of a command


class Folder:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def log(self, point: Point) -> pathlib.Path:
        return self.path / f"{point.name}.h5"

    def text(self, point: Point) -> pathlib.Path:
        return self.path / f"{point.name}.txt"

    def full(self, point: Point) -> pathlib.Path:
        return self.path / f"{point.name}.full"

    def part(self, point: Point) -> pathlib.Path:
        return self.path.resolve() / f"{point.name}.part.h5"


@dataclasses.dataclass(frozen=True)
class Progress:
    state: str  # done, missing, damaged, full (of memory), skipped (after one that was full), differs
    why: str = ""  # a sentence about the damage, the memory (full and skipped), or the difference


def _difference(text: pathlib.Path, line: str) -> str:
    """The first difference between a run and the one that the line starts now; empty if there is none."""
    if not text.is_file():
        return ""
    with open(text, encoding="utf-8", errors="replace") as file:
        old, now = settings_of_line(file.readline(_LONGEST_LINE)), settings_of_line(line)
    if not old:
        return f"{text.name} does not say how it was run"
    for name in now | old:
        if old.get(name) != now.get(name):
            was, is_ = (f"with {name} {settings[name]}" if name in settings else f"without {name}"
                        for settings in (old, now))
            return f"was run {was}, and would now be run {is_}"
    return ""


def progress_of(points: list[Point], folder: Folder, links: Links) -> dict[str, Progress]:
    """The progress by the points' names. It needs all points of the study, because their order says where a section
    has ended."""
    found: dict[str, Progress] = {}
    ended: dict[str, str] = {}  # by section
    for point in points:
        log, full = folder.log(point), folder.full(point)
        is_full = point.may_fill_memory and full.exists() and not log.exists()
        if log.exists() or is_full:
            why = _difference(folder.text(point), links.line(point, folder.part(point)))
            if why:
                remedy = f"name another folder by --out, or remove {full if is_full else log}"
                found[point.name] = Progress("differs", f"{full if is_full else log}: {why}; {remedy}")
            elif is_full:
                ended[point.section] = memory_is_full(point, full.read_text(encoding="utf-8").strip())
                found[point.name] = Progress("full", ended[point.section])
            else:
                damage = damage_of(log)
                why = f"{log}: {damage}; it is kept under another name, and the point runs again"
                found[point.name] = Progress("damaged", why) if damage else Progress("done")
        elif point.section in ended:
            found[point.name] = Progress("skipped", ended[point.section])
        else:
            found[point.name] = Progress("missing")
    return found


def memory_is_full(point: Point, why: str) -> str:
    return f"the memory is full at {point.name}: {why}"
