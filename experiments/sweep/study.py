"""Reads a study: an INI file whose sections are grids of runs (see dpsweep --help)."""
from __future__ import annotations

import configparser
import dataclasses
import itertools
import pathlib
import re
import shlex
import sys
from typing import NoReturn

_NO_GRID = ("options", "small", "ends")


@dataclasses.dataclass(frozen=True)
class Point:
    name: str
    section: str
    ranks: int
    rate: str  # "off", or as dptrain and dplab write it
    options: tuple[str, ...]  # dptrain's: --name, value, --name, value, ...
    may_fill_memory: bool  # which then ends the section


def fail(message: str) -> NoReturn:
    print(f"dpsweep: {message}", file=sys.stderr)
    sys.exit(2)


def settings_of(words: list[str], where: str) -> dict[str, str]:
    """dptrain's options as a dictionary: every one has a value."""
    pairs = list(zip(words[::2], words[1::2]))
    if len(words) % 2 or any(not re.fullmatch("--[a-z][a-z0-9-]*", name) or value.startswith("--")
                             for name, value in pairs):
        fail(f"{where}: {shlex.join(words)}: must be pairs of --name and value, separated by a space; "
             "options without a value are not possible")
    for name, _ in pairs:
        if name == "--log":
            fail(f"{where}: --log: is set for every run by dpsweep itself")
        if words[::2].count(name) > 1:
            fail(f"{where}: {name}: is given twice")
    return dict(pairs)


def _count_of_ranks(text: str, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        fail(f"{where}: ranks = {text}: must be a whole number from 1 to 999")
    return int(text)


def _read_ini(path: pathlib.Path) -> configparser.ConfigParser:
    ini = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    try:
        if not ini.read(path, encoding="utf-8"):
            fail(f"{path}: there is no such file")
    except configparser.Error as error:
        fail(f"{path}: {error.message.splitlines()[0]}")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: cannot be read: {error}")
    if not ini.has_section("study"):
        fail(f"{path}: the section [study] is missing")
    for key in ini["study"]:
        if key not in ("ranks", "rate", "options", "small"):
            fail(f"{path}: [study] {key}: must be one of ranks, rate, options, small")
    return ini


def read_study(path: pathlib.Path, is_small: bool, more: list[str]) -> list[Point]:
    """The points in their order. `more` are options of the command line, which win over the study's."""
    ini = _read_ini(path)
    study = ini["study"]
    where = f"{path}: [study]"
    defaults = {"ranks": study.get("ranks", "4"), "rate": study.get("rate", "off")}
    _count_of_ranks(defaults["ranks"], where)
    common = settings_of(shlex.split(study.get("options", "")), f"{where} options")
    of_command_line = settings_of(more, "after --")
    points: dict[str, Point] = {}
    for section in ini.sections():
        if section == "study":
            continue
        where = f"{path}: [{section}]"
        keys = dict(ini[section])
        if keys.get("ends", "memory") != "memory":
            fail(f"{where}: ends = {keys['ends']}: must be memory, or be left out")
        if is_small and "small" not in keys and "small" not in study:
            fail(f"{where}: has no small form: neither it nor [study] says small = OPTIONS")
        added = settings_of(shlex.split(keys.get("options", "")), f"{where} options")
        small = settings_of(shlex.split(keys.get("small", study.get("small", ""))), f"{where} small")
        axes = [[(option, value.strip()) for value in re.split(r"[|\n]", values) if value.strip()]
                for option, values in keys.items() if option not in _NO_GRID]
        for values in itertools.product(*axes):
            name = re.sub(r"[^A-Za-z0-9.+-]+", "_", "-".join([section, *(value for _, value in values)]))
            if name in points:
                fail(f"{path}: two points are called {name}")
            chosen = defaults | dict(values)
            ranks, rate = _count_of_ranks(chosen.pop("ranks"), where), chosen.pop("rate")
            options = common | added | {f"--{option}": value for option, value in chosen.items()}
            options |= (small if is_small else {}) | of_command_line
            if "--throttle" in options and ("rate" in study or "rate" in keys):
                fail(f"{where}: --throttle {options['--throttle']}: the study sets the rate of links itself, by rate")
            points[name] = Point(name, section, ranks, rate, tuple(word for pair in options.items() for word in pair),
                                 "ends" in keys)
    if not points:
        fail(f"{path}: no section names runs")
    return list(points.values())
