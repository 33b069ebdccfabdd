"""Trainings as a text: what they learnt and sent, epoch by epoch, without any times.

What an exchange does to learning depends neither on the link nor on the machine, so trainings that took hours are kept
in a small file, such as experiments/bytes.json, and joined with the times that other runs measure over other links (reach.py).
Only with `auto` it depends on both: its curves belong to their link, and to machines whose steps take about as long.

The file is JSON: for each kind of training the options that its runs share, and for each run its own options, link,
revision of dptrain, and columns of /epochs.
"""
from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pandas as pd

from . import compare
from .earlier_options import with_keys
from .read_log import printable
from .run import Run

FORMAT, VERSION = "dptrain curves", 1
MOST = 1e18  # of any number; nothing that a run counts comes near it
NEEDED = {"samples": (1, MOST), "global_batch": (1, MOST), "sent_bytes": (0, MOST), "test_accuracy": (0, 1)}  # their ranges
COLUMNS = NEEDED | {"exchanges": (0, MOST), "train_loss": (0, MOST), "wire_bytes": (0, MOST)}
WHOLE = {"samples", "global_batch", "sent_bytes", "exchanges", "wire_bytes"}
LINK = {"nominal_bit_per_s": (0, MOST), "nominal_delay_s": (0, MOST), "nominal_loss": (0, 1), "nominal_is_shared": (0, 1),
        "link_bytes_per_s": (0, MOST)}  # the link's values, and their ranges
MAY_LACK = "train_loss"
DIGITS = 6  # of losses and accuracies
MOST_RANKS = 100_000
LONGEST_SHOWN = 40  # characters of a value in a message
LEFT_OUT = (compare.NO_DIFFERENCE | compare.PLACE) - {"throttle"}  # of the options


class Unreadable(Exception):
    """Why a file has no trainings, in one clause."""


class Nothing(Exception):
    """There is no training to be saved. The text is a clause."""


def _options(run: Run) -> dict[str, str]:
    return {name: value for name, value in sorted(run.config.items()) if value and name not in LEFT_OUT}


def _epochs(run: Run) -> dict[str, list[float | None]]:
    def plain(name: str, value: float) -> float | None:
        if not _is_number(float(value), *COLUMNS[name]):
            return None
        return int(value) if name in WHOLE else float(f"{value:.{DIGITS}g}")

    columns = {name: [plain(name, value) for value in run.epochs[name]] for name in COLUMNS if name in run.epochs}
    return {name: values for name, values in columns.items() if name == MAY_LACK or None not in values}


def is_whole(run: Run) -> bool:
    """Whether its accuracies and bytes are all there, so that it can be kept."""
    return all(least <= value <= most for name, (least, most) in NEEDED.items() for value in run.epochs[name])


def text(trainings: list[Run]) -> str:
    """The file with these trainings. A line is a run. Throws Nothing."""
    runs, kinds = [run for run in trainings if is_whole(run)], []
    if not runs:
        raise Nothing("no log is a training with which the report can compare, that is one of at least three epochs, with "
                      "another one that has another exchange, and one that has fp32 at every step")
    for same in compare.groups(runs, lambda run: compare.work(run, compare.EXCHANGE | compare.PLACE)).values():
        options = [_options(run) for run in same]
        shared = {name: value for name, value in options[0].items() if all(own.get(name) == value for own in options)}
        rows = []
        for run, own in zip(same, options):
            link = {name: run.attributes[name] for name in LINK if run.given(name) is not None} | {"hosts": len(set(run.hosts))}
            rows.append(json.dumps({
                "name": run.label, "options": {name: value for name, value in own.items() if name not in shared}, "link": link,
                "revision": str(run.attributes.get("git_revision", "")), "epochs": _epochs(run)
            }, ensure_ascii=False))
        head = (f'"model": {json.dumps(same[0].model_name)}, "ranks": {same[0].world_size}, '
                f'"options": {json.dumps(shared, ensure_ascii=False)}')
        kinds.append("{" + head + ', "runs": [\n' + ",\n".join(rows) + "\n]}")
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "trainings": [\n' + ",\n".join(kinds) + "\n]}\n"


def read(path: pathlib.Path) -> tuple[Run, ...]:
    """Throws Unreadable."""
    if path.exists() and not path.is_file():  # a pipe or device: reading it might never end
        raise Unreadable("is not a regular file")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable("cannot be read as a text") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable("is not JSON") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise Unreadable(f'is not a file of dpreport --save-curves: it has no "format": "{FORMAT}"')
    if said.get("version") != VERSION:
        raise Unreadable(f"has version {said.get('version')}; this dpreport reads {VERSION}")
    runs = []
    for k, kind in enumerate(_list(said, "trainings", "the file"), 1):
        where = f"training {k}"
        ranks = _member(kind, "ranks", where, lambda value: type(value) is int and 1 <= value <= MOST_RANKS,
                        f"a number from 1 to {MOST_RANKS}")
        model = _member(kind, "model", where, lambda value: isinstance(value, str), "a text")
        shared = _texts(kind, "options", where)
        for r, row in enumerate(_list(kind, "runs", where), 1):
            runs.append(_run(path, printable(model), ranks, shared, row, f"{where}, run {r}"))
    return tuple(runs)


def _shown(value: Any) -> str:
    """As JSON, short enough for a sentence."""
    shown = printable(json.dumps(value, ensure_ascii=False))
    return shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + "..."


def _member(of: Any, name: str, where: str, is_right: Callable[[Any], bool], what: str) -> Any:
    if not isinstance(of, dict):
        raise Unreadable(f"{where} is {_shown(of)}; it must have values by their names")
    if name not in of:
        raise Unreadable(f"{where} has no {name}; it must be {what}")
    if not is_right(of[name]):
        raise Unreadable(f"{where}: its {name} is {_shown(of[name])}; it must be {what}")
    return of[name]


def _list(of: Any, name: str, where: str) -> list[Any]:
    return _member(of, name, where, lambda value: isinstance(value, list), "a list")


def _named(of: Any, name: str, where: str, is_right: Callable[[Any], bool], what: str) -> dict[str, Any]:
    found = _member(of, name, where, lambda value: isinstance(value, dict), "values by their names")
    for key in found:
        _member(found, key, f"{where}, {name}", is_right, what)
    return found


def _texts(of: Any, name: str, where: str) -> dict[str, str]:
    found = _named(of, name, where, lambda value: isinstance(value, str), "a text")
    return {printable(key): printable(value) for key, value in found.items()}


def _is_number(value: Any, least: float = -MOST, most: float = MOST) -> bool:
    return type(value) in (int, float) and least <= value <= most


def _column(columns: dict[str, Any], name: str, count: int, least: float, most: float, where: str) -> None:
    what = f"a number from {least} to {most:g}"
    values = _list(columns, name, where)
    if len(values) != count:
        raise Unreadable(f"{where}: its {name} has {len(values)} values, its samples {count}; both must have as many")
    for epoch, value in enumerate(values, 1):
        if not _is_number(value, least, most) and not (value is None and name == MAY_LACK):
            raise Unreadable(f"{where}: its {name} of epoch {epoch} is {_shown(value)}; it must be {what}")


def _run(path: pathlib.Path, model: str, ranks: int, shared: dict[str, str], row: Any, where: str) -> Run:
    name = _member(row, "name", where, lambda value: isinstance(value, str), "a text")
    link = _named(row, "link", where, _is_number, "a number")
    for key in LINK.keys() & link.keys():
        least, most = LINK[key]
        _member(link, key, f"{where}, link", lambda value, least=least, most=most: _is_number(value, least, most),
                f"a number from {least} to {most:g}")
    hosts = int(min(max(link.get("hosts", 1), 1), ranks))
    columns = _member(row, "epochs", where, lambda value: isinstance(value, dict), "columns by their names")
    count = len(_list(columns, "samples", where))
    for column, (least, most) in COLUMNS.items():
        if column in NEEDED or column in columns:
            _column(columns, column, count, least, most, where)
    epochs = pd.DataFrame({column: columns[column] for column in COLUMNS if column in columns}, dtype=float)
    epochs.insert(0, "epoch", range(count))
    config = with_keys(shared | _texts(row, "options", where))
    attributes = {key: link[key] for key in LINK if key in link} | {
        "world_size": ranks, "finished": 1, "hosts": [f"host{h}" for h in range(hosts)],
        "git_revision": printable(str(row.get("revision", "")))}
    return Run(path, printable(name), attributes, config, {"name": model}, epochs)
