"""The settings of a lab: values with units, what was asked for, and the state of its links."""
from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import pathlib
import re
from typing import Iterator, TextIO

from .new_files import open_own, whole_file

MOST_HOSTS = 64
SURE_BIT_PER_S = 2_000_000_000  # of one stream; two cores of 2023 reach 7 to 8.5 Gbit/s
SWITCH = "switch"
METER = "meter"  # an additional host, the other end of `status`'s measurements


class LabError(Exception):
    """A sentence for the user. The exit code: 1 the world failed, 2 usage, 77 no permission (EX_NOPERM)."""

    def __init__(self, message: str, code: int = 1):
        super().__init__(message)
        self.code = code


def shown(text: str) -> str:
    """A value as an error message shows it: an empty one is visible, and a very long one is cut."""
    return (text if len(text) <= 60 else f"{text[:60]}...") or "''"


def _value(text: str, units: dict[str, float], what: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z%]+)", text.lower())
    if not match or match[2] not in units:
        raise ValueError(f"{shown(text)}: must be {what}")
    return float(match[1]) * units[match[2]]


def parse_rate(text: str) -> int:
    """Bits per second; 1 Mbit/s = 10^6 bit/s, as everywhere."""
    what = "a rate from 100kbit to 10gbit, such as 50mbit"
    rate = _value(text, {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}, what)
    if not 1e5 <= rate <= 1e10:
        raise ValueError(f"{shown(text)}: must be {what}")
    return round(rate)


def parse_delay(text: str) -> float:
    """Seconds."""
    what = "a time from 0ms to 2s, such as 5ms or 500us"
    delay_s = _value(text, {"us": 1e-6, "ms": 1e-3, "s": 1.0}, what)
    if delay_s > 2:
        raise ValueError(f"{shown(text)}: must be {what}")
    return delay_s


def parse_loss(text: str) -> float:
    """A fraction."""
    what = "a percentage from 0% to 50%, such as 0.1%"
    loss = _value(text, {"%": 0.01}, what)
    if loss > 0.5:
        raise ValueError(f"{shown(text)}: must be {what}")
    return loss


def parse_speed(text: str) -> float:
    """Of a host, relative to others."""
    match = re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text)
    if not match or not 0.01 <= float(text) <= 100:
        raise ValueError(f"{shown(text)}: must be a speed from 0.01 to 100, such as 0.5")
    return float(text)


def parse_speeds(text: str) -> list[float]:
    return [parse_speed(each) for each in text.split(",")]


def parse_congestion(text: str) -> str:
    """A name that the kernel knows, or our "auto"."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", text):
        raise ValueError(f"{shown(text)}: must be the name of a TCP congestion control, such as cubic, reno or bbr")
    return text


def parse_name(text: str) -> str:
    """Of a lab."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", text):
        raise ValueError(f"{shown(text)}: must be a name of lower-case letters, digits and -, which begins with a "
                         "letter and has 31 characters at most")
    return text


def rate_text(bit_per_s: float) -> str:
    unit, factor = ("Gbit/s", 1e9) if bit_per_s >= 1e9 else ("Mbit/s", 1e6)
    return f"{bit_per_s / factor:g} {unit}"


def delay_text(delay_s: float) -> str:
    return f"{1e3 * delay_s:g} ms" if delay_s else "none"


def loss_text(loss: float) -> str:
    return f"{100 * loss:g} %" if loss else "none"


@dataclasses.dataclass
class Link:
    """The cable of one host, with the same rate in both directions."""

    rate_bit_per_s: int
    is_cut: bool = False
    dead: str = ""  # "up" or "down": the only direction in which nothing arrives

    def state(self) -> str:
        return "cut" if self.is_cut else f"no way {self.dead}" if self.dead else "up"


@dataclasses.dataclass
class Settings:
    """A lab as `up` asked for it, and its links as `cut`, `mend` and `rate` have left them."""

    lab: str
    nodes: int
    rate_bit_per_s: int  # of the medium, where it is shared
    delay_s: float  # from host to host, one way
    loss: float  # of the frames from host to host
    is_shared: bool
    filter: str  # how delay and loss are made: auto, netem, tap; none if there are none
    congestion: str  # TCP's congestion control in all hosts; auto until the hosts exist
    flip: int = 0  # in every so many full frames a bit is flipped; 0: in none
    speeds: list[float] = dataclasses.field(default_factory=list)  # of the hosts; empty: nothing limits them
    cores_of_speed_1: float = 0.0
    cpu_folder: str = ""  # of the hosts' cgroups
    links: list[Link] = dataclasses.field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Settings:
        values = json.loads(text)
        return Settings(**(values | {"links": [Link(**link) for link in values["links"]]}))

    def names(self) -> list[str]:
        return [f"node{k}" for k in range(1, self.nodes + 1)]

    def index(self, node: str) -> int:
        """The index in `links` of "3" or "node3"."""
        match = re.fullmatch(r"(?:node)?([0-9]{1,2})", node)
        if not match or not 1 <= int(match[1]) <= self.nodes:
            raise LabError(f"{shown(node)}: this lab has the hosts 1 to {self.nodes} (node1 to node{self.nodes})", 2)
        return int(match[1]) - 1


def address(number: int) -> str:
    """The address of host 1, 2, ... Every lab has this network for itself."""
    return f"10.99.0.{number}"


METER_NUMBER = 254


def _open(state: pathlib.Path, mode: str) -> TextIO:
    try:
        return open(state / "settings.json", mode, encoding="utf-8", opener=open_own)
    except FileNotFoundError as error:
        raise LabError("the lab is not complete: another dplab is making it at this moment") from error


# What flock() answers on a file system without locks, such as NFS without its lock service.
NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def _lock(file: TextIO, kind: int) -> None:
    """Waits for the lock. Without locks, two programs that change the same lab may lose one's changes."""
    try:
        fcntl.flock(file, kind)
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise


@contextlib.contextmanager
def edited(state: pathlib.Path) -> Iterator[Settings]:
    """The settings in the lab's state folder, which are written back at the end. Other programs wait meanwhile."""
    with _open(state, "r+") as file:
        _lock(file, fcntl.LOCK_EX)
        settings = Settings.from_json(file.read())
        yield settings
        file.seek(0)
        file.truncate()
        file.write(settings.to_json())


def read(state: pathlib.Path) -> Settings:
    with _open(state, "r") as file:
        _lock(file, fcntl.LOCK_SH)
        return Settings.from_json(file.read())


def write(state: pathlib.Path, settings: Settings) -> None:
    """Writes them for the first time, so that readers see the whole file or none."""
    with whole_file(state / "settings.json") as file:
        file.write(settings.to_json().encode())
