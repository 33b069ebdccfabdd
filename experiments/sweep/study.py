"""Reads a study: an INI file whose sections are grids of runs (see dpsweep --help)."""
from __future__ import annotations

import ast
import configparser
import dataclasses
import itertools
import math
import pathlib
import re
import shlex
import sys
from typing import NoReturn

from lab.command_line import complain
from lab.settings import parse_delay, parse_rate, shown

USAGE, UNUSABLE = 2, 3  # exit codes: wrong usage; a file or folder cannot be used
_NO_GRID = ("options", "small", "ends")
_MOST_POINTS = 10_000
_LONGEST_NAME = 200  # of 255; the rest is for what is added to the name


@dataclasses.dataclass(frozen=True)
class Point:
    name: str
    section: str
    ranks: int
    rate: str  # "off", or a rate as dptrain and dplab write it
    delay: str  # "off", or a time from host to host, one way, as dplab writes it
    options: tuple[str, ...]  # dptrain's: --name, value, --name, value, ...
    may_fill_memory: bool  # which then ends the section


def fail(message: str, code: int = USAGE) -> NoReturn:
    complain("dpsweep", message)
    sys.exit(code)


def _words(text: str, where: str) -> list[str]:
    """Splits a text as a shell would."""
    try:
        return shlex.split(text)
    except ValueError:
        fail(f"{where}: {' '.join(text.split())}: a quotation mark has no partner; write it as \\\" or \\' where it is "
             "part of a value")


def settings_of(words: list[str], where: str) -> dict[str, str]:
    """dptrain's options as a dictionary; each has a value."""
    pairs = list(zip(words[::2], words[1::2]))
    if len(words) % 2 or any(not re.fullmatch("--[a-z][a-z0-9-]*", name) or value.startswith("--")
                             for name, value in pairs):
        fail(f"{where}: {' '.join(shlex.join(words).split())}: must be pairs of --name and value, separated by a "
             "space; options without a value are not possible")
    for name, value in pairs:
        if name == "--log":
            fail(f"{where}: --log: is set for every run by dpsweep itself")
        if words[::2].count(name) > 1:
            fail(f"{where}: {name}: is given twice")
        if re.search(r"[\x00-\x1f\x7f]", value):
            fail(f"{where}: {name} {value!r}: must be without line breaks and other control characters")
    return dict(pairs)


def _count_of_ranks(text: str, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text):
        fail(f"{where}: ranks = {shown(text)}: must be a whole number from 1 to 999")
    return int(text)


def _text(path: pathlib.Path) -> str:
    if not path.exists():
        fail(f"{path}: there is no such file")
    if not path.is_file():
        fail(f"{path}: must be a study, which is a text file")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data[:error.start].count(b"\n") + 1
        fail(f"{path}: line {number} is not UTF-8 text: must be a study, which is a text file", UNUSABLE)
    odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if odd:
        number = text[:odd.start()].count("\n") + 1
        fail(f"{path}: line {number} holds the character {odd[0]!r}: must be a study, which is a text file", UNUSABLE)
    return text


def _read_ini(path: pathlib.Path) -> configparser.ConfigParser:
    # No section has defaults for the others, because a heading cannot be empty.
    ini = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None, default_section="")
    try:
        ini.read_string(_text(path))
    except configparser.MissingSectionHeaderError as error:
        fail(f"{path}: line {error.lineno}: {error.line.strip()}: stands before the first [section]")
    except configparser.ParsingError as error:
        number, line = error.errors[0]
        fail(f"{path}: line {number}: {shown(ast.literal_eval(line).strip())}: must be [section], name = values, or an "
             "indented line with more values")
    except configparser.DuplicateSectionError as error:
        fail(f"{path}: line {error.lineno}: [{error.section}]: is there twice")
    except configparser.DuplicateOptionError as error:
        fail(f"{path}: line {error.lineno}: [{error.section}] {error.option}: is given twice")
    if not ini.has_section("study"):
        fail(f"{path}: the section [study] is missing")
    for key in ini["study"]:
        if key not in ("ranks", "rate", "delay", "options", "small", "seeds"):
            fail(f"{path}: [study] {key}: must be one of ranks, rate, delay, options, small, seeds")
    return ini


def _axes(keys: dict[str, str], where: str) -> list[list[tuple[str, str]]]:
    """For each line of a grid, its option with each of its values."""
    axes = []
    for option, values in keys.items():
        if option not in _NO_GRID:
            axes.append([(option, value.strip()) for value in re.split(r"[|\n]", values) if value.strip()])
            if not axes[-1]:
                fail(f"{where}: {option} = : must have a value, or several that are separated by |")
    if math.prod(map(len, axes)) > _MOST_POINTS:
        fail(f"{where}: names {math.prod(map(len, axes)):,} runs; {_MOST_POINTS:,} are possible")
    return axes


def _seeds(study: configparser.SectionProxy, where: str) -> list[str]:
    seeds = [value.strip() for value in study["seeds"].split("|")]
    for seed in seeds:
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", seed) or seeds.count(seed) > 1:
            fail(f"{where}: seeds = {shown(study['seeds'])}: must be different whole numbers, separated by |")
    return seeds


def read_study(path: pathlib.Path, is_small: bool, more: list[str]) -> list[Point]:
    """The points in their order. `more` are options of the command line, which win over the study's."""
    ini = _read_ini(path)
    study = ini["study"]
    where = f"{path}: [study]"
    defaults = {"ranks": study.get("ranks", "4"), "rate": study.get("rate", "off"),
                "delay": study.get("delay", "off")}
    _count_of_ranks(defaults["ranks"], where)
    common = settings_of(_words(study.get("options", ""), f"{where} options"), f"{where} options")
    of_command_line = settings_of(more, "after --")
    seeds = _seeds(study, where) if "seeds" in study else []
    points: dict[str, Point] = {}
    for seed, section in itertools.product(seeds[:1] if is_small and seeds else seeds or [""], ini.sections()):
        if section == "study":
            continue
        where = f"{path}: [{section}]"
        keys = dict(ini[section])
        if keys.get("ends", "memory") != "memory":
            fail(f"{where}: ends = {shown(keys['ends'])}: must be memory, or be left out")
        if is_small and "small" not in keys and "small" not in study:
            fail(f"{where}: has no small form: neither it nor [study] says small = OPTIONS")
        added = settings_of(_words(keys.get("options", ""), f"{where} options"), f"{where} options")
        small = settings_of(_words(keys.get("small", study.get("small", "")), f"{where} small"), f"{where} small")
        for values in itertools.product(*_axes(keys, where)):
            parts = [section, *(value for _, value in values), *([f"seed{seed}"] if seed else [])]
            name = re.sub(r"[^A-Za-z0-9.+-]+", "_", "-".join(parts))
            if name in points:
                fail(f"{path}: two points are called {name}")
            if len(name) > _LONGEST_NAME:
                fail(f"{where}: the files of a point would be called {name[:60]}...: must be {_LONGEST_NAME} characters "
                     "at most; put its long values into options")
            chosen = defaults | dict(values)
            ranks, rate = _count_of_ranks(chosen.pop("ranks"), where), chosen.pop("rate")
            delay = chosen.pop("delay")
            options = common | added | {f"--{option}": value for option, value in chosen.items()}
            options |= (small if is_small else {}) | of_command_line
            if seed:
                if "--seed" in options:
                    fail(f"{where}: --seed {options['--seed']}: the study sets the seed itself, by seeds")
                options["--seed"] = seed
            if "--throttle" in options and ("rate" in study or "rate" in keys):
                fail(f"{where}: --throttle {options['--throttle']}: the study sets the rate of links itself, by rate")
            points[name] = Point(name, section, ranks, rate, delay,
                                 tuple(word for pair in options.items() for word in pair), "ends" in keys)
    if not points:
        fail(f"{path}: no section names runs")
    return list(points.values())


def check_links(points: list[Point], most_hosts: int | None) -> None:
    """Checks that the links of these points can be made, before the first of them runs: by dplab with up to so many
    hosts, or by dptrain (None), which checks rates itself and makes no delays."""
    for point in points:
        if point.delay != "off":
            if most_hosts is None:
                fail(f"{point.name}: delay = {shown(point.delay)}: only the hosts of a lab have delays; give --lab")
            if point.rate == "off":
                fail(f"{point.name}: delay = {shown(point.delay)}: needs a rate, too")
            try:
                parse_delay(point.delay)
            except ValueError as error:
                fail(f"{point.name}: delay = {error}")
        if most_hosts is None:
            continue
        if point.rate == "off" or point.ranks == 1:
            continue
        if point.ranks > most_hosts:
            fail(f"{point.name}: ranks = {point.ranks}: with --lab must be {most_hosts} at most, one on each host")
        try:
            parse_rate(point.rate)
        except ValueError as error:
            fail(f"{point.name}: rate = {error}")
