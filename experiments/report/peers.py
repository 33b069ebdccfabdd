"""Steps of other programs, measured over the same links: the rows of a file such as experiments/peers.csv."""
from __future__ import annotations

import csv
import math
import pathlib
from dataclasses import dataclass

from .read_log import printable

COLUMNS = ("program", "model", "ranks", "batch", "link", "step_s", "compute_s", "sent_mb", "curve", "machine")


class Unreadable(Exception):
    """Why a file has no such rows, in one clause."""


@dataclass(frozen=True)
class Peer:
    program: str
    model: str
    ranks: int
    batch: int  # images a step and rank
    link: str  # as the report names it: "10 Mbit/s, lab"
    step_s: float
    compute_s: float | None  # of it, computation; what the step would take without a network
    sent_mb: float | None  # by a rank, in a step
    has_fp32_curve: bool  # whether it computes what fp32 at every step computes
    machine: str


def read(path: pathlib.Path) -> tuple[Peer, ...]:
    """Throws Unreadable."""
    if path.exists() and not path.is_file():  # a pipe or device: reading it might never end
        raise Unreadable("is not a regular file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable("cannot be read as a text") from error
    rows = csv.DictReader(text.splitlines())
    try:
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise Unreadable(f"must begin with the line {','.join(COLUMNS)}")
        return tuple(_peer(row, rows.line_num) for row in rows)
    except csv.Error as error:
        raise Unreadable(f"line {rows.line_num + 1}: is not CSV ({error})") from error


def _peer(row: dict[str, str | None], line: int) -> Peer:
    if None in row or None in row.values():
        found = sum(value is not None for key, value in row.items() if key is not None) + len(row.get(None) or ())
        raise Unreadable(f"line {line}: has {found} values; it must have {len(COLUMNS)}, separated by commas")
    row = {name: printable(value or "") for name, value in row.items()}

    def number(name: str, may_lack: bool = False) -> float | None:
        text = row[name]
        if not text and may_lack:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise Unreadable(f"line {line}: {name} {text}: must be a number above 0" + " or nothing" * may_lack)
        return value

    def whole(name: str) -> int:
        value = number(name) or 0.0
        if value != int(value):
            raise Unreadable(f"line {line}: {name} {row[name]}: must be a whole number above 0")
        return int(value)

    if row["curve"] not in ("fp32", ""):
        raise Unreadable(f"line {line}: curve {row['curve']}: must be fp32 or nothing")
    return Peer(row["program"], row["model"], whole("ranks"), whole("batch"), row["link"], number("step_s") or 0.0,
                number("compute_s", True), number("sent_mb", True), row["curve"] == "fp32", row["machine"])
