"""Reads a run log (HDF5, format_version 1: io/log/run_log_rows.hpp lists the columns), also while it is being written.

Unreadable says in one clause why a file gives no run. Run.problems lists what is missing in a readable log.
"""
from __future__ import annotations

import errno
import multiprocessing
import os
import pathlib
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import h5py
import numpy as np
import pandas as pd

from . import missing_rows, odd_values, read_hdf5
from .earlier_options import with_keys
from .read_hdf5 import printable
from .run import Run

FORMAT_VERSION = 1
TRIES, PAUSE_S, JUST_NOW_S, LONGEST_S = 4, 0.25, 60.0, 30.0
STEP_COLUMNS = [
    "step", "epoch", "comm_s", "peer_wait_s", "exposed_comm_s", "step_s", "planned_bits", "partial_bits", "total_bits",
    "link_bytes_per_s", "hidden_bits", "residual_growth", "wished_bits", "train_loss", "learning_rate"
]
NEEDED = {
    "epochs": ("epoch", "samples", "global_batch", "epoch_s"), "ranks": ("epoch", "rank"),
    "buckets": ("epoch", "bucket"), "sessions": ("first_epoch", "world_size"), "steps": ("step", "comm_s"),
    "tensors": ("epoch", "tensor", "elements", "longest_wait"), "shares": ("step", "rank", "images")
}


class Unreadable(Exception):
    """Why a file gives no run."""


def find_logs(paths: Iterable[pathlib.Path]) -> tuple[list[pathlib.Path], list[str]]:
    """The named files and all *.h5 below the named folders, each once, and what is wrong with the names."""
    logs: dict[pathlib.Path, None] = {}
    problems = []
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            problems.append(f"{path}: there is no such file" if error.errno in (errno.ENOENT, errno.ENOTDIR) else
                            f"{path}: cannot be read: {error.strerror}")
            continue
        if stat.S_ISDIR(mode):
            found = sorted((p for p in path.rglob("*.h5") if p.is_file()), key=_natural)
            if not found:
                problems.append(f"{path}: there is no *.h5 file in this folder")
            logs |= dict.fromkeys(found)
        elif stat.S_ISREG(mode):
            logs[path] = None
        else:  # a pipe or device: reading it might never end
            problems.append(f"{path}: is not a regular file")
    return list(logs), problems


_FACTORS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def _natural(path: pathlib.Path) -> list[tuple[int, str]]:
    """Sorts 2 before 10, and 100mbit before 1gbit."""
    text = re.sub(r"([0-9]+)([kmg]bit)", lambda rate: str(int(rate[1]) * _FACTORS[rate[2]]), str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)]


def labels_of(paths: list[pathlib.Path]) -> list[str]:
    """Short names of files that tell them apart."""
    def stem(path: pathlib.Path) -> str:
        return path.name.removesuffix(".h5").removesuffix(".part")

    stems = [stem(path) for path in paths]
    shared = pathlib.Path(os.path.commonpath([path.resolve().parent for path in paths])) if paths else pathlib.Path()

    def longer(path: pathlib.Path) -> str:
        return str(path.resolve().relative_to(shared)).removesuffix(".h5")

    return [printable(stem if stems.count(stem) == 1 else longer(path)) for path, stem in zip(paths, stems)]


def read(path: pathlib.Path, label: str) -> Run:
    """Throws Unreadable. A file that is being written may change while it is read, so a failure is tried again."""
    for attempt in range(TRIES):
        try:
            return _read_once(path, label)
        except Unreadable:
            raise
        except (read_hdf5.TooLarge, read_hdf5.Elsewhere) as error:
            raise Unreadable(f"is damaged: {error}") from error
        except Exception as error:  # h5py reports a damaged file in many ways
            if attempt == TRIES - 1 or _lacks_memory(error) or not _may_be_written(path):
                raise Unreadable(_reason(path, error)) from error
            time.sleep(PAUSE_S)
    raise AssertionError("unreachable")


def read_all(paths: list[pathlib.Path]) -> Iterator[Run | Unreadable]:
    """One result per path. Another process reads the files, since a damaged file can crash the HDF5 library."""
    processes = multiprocessing.get_context("fork")
    jobs = list(zip(paths, labels_of(paths)))
    done = 0
    while done < len(jobs):
        parent, child = processes.Pipe(duplex=False)
        reader = processes.Process(target=_send_all, args=(child, jobs[done:]), daemon=True)
        reader.start()
        child.close()
        try:
            while done < len(jobs):
                if not parent.poll(LONGEST_S):
                    raise EOFError
                result = parent.recv()
                done += 1
                yield result
                if isinstance(result, Unreadable):  # a library that failed may keep memory, so it begins anew
                    break
        except EOFError:
            done += 1
            yield Unreadable("is damaged: the HDF5 library cannot read it")
        reader.kill()
        reader.join()


def _send_all(pipe: Connection, jobs: list[tuple[pathlib.Path, str]]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library prints when it crashes
    for path, label in jobs:
        try:
            with read_hdf5.bounded_memory(path):
                result: Run | Unreadable = read(path, label)
        except Unreadable as error:
            result = error
        pipe.send(result)


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "memory allocation failed" in str(error)


def _may_be_written(path: pathlib.Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < JUST_NOW_S
    except OSError:
        return False


def _reason(path: pathlib.Path, error: Exception) -> str:
    text = str(error)
    if not os.access(path, os.R_OK):
        return "cannot be read: no permission"
    size = path.stat().st_size
    if size == 0:
        return "is empty: the run has not written anything yet, or it ended before it did"
    if "truncated file" in text:
        whole = [word for word in text.replace("=", " ").replace(",", " ").replace(")", " ").split() if word.isdigit()]
        least = f" of {int(whole[-1]):,}" if whole else ""
        return f"is cut off: it has {size:,}{least} bytes"
    if "file signature not found" in text:
        return "is not an HDF5 file"
    if _lacks_memory(error):
        return f"is damaged: its values take more memory than a file of {size:,} bytes can justify"
    return "is damaged: " + (" ".join(text.split()) or type(error).__name__)


def _read_once(path: pathlib.Path, label: str) -> Run:
    with h5py.File(path, "r", locking=False) as file:
        attributes = read_hdf5.attributes(file)
        version = attributes.get("format_version")
        if version is None:
            raise Unreadable("is not a run log: it has no attribute format_version")
        if version != FORMAT_VERSION:
            raise Unreadable(f"has format_version {version!r}; this dpreport reads {FORMAT_VERSION}")
        if not isinstance(attributes.get("world_size"), int) or attributes["world_size"] < 1:
            raise Unreadable("has no attribute world_size that is a number of ranks")
        problems: list[str] = []
        attributes = odd_values.usable(attributes, problems)

        def group(name: str) -> dict[str, Any]:
            found = read_hdf5.child(file, name)
            if not isinstance(found, h5py.Group):
                problems.append(f"has no group /{name}")
                return {}
            return read_hdf5.attributes(found)

        def table(name: str, columns: list[str] | None = None, is_optional: bool = False) -> pd.DataFrame | None:
            return _table(file, name, columns, problems, None if is_optional else problems.append)

        epochs = table("epochs")
        if epochs is None:
            raise Unreadable(problems[-1])
        run = Run(path, label, attributes, with_keys({name: str(value) for name, value in group("config").items()}),
                  group("model"), epochs, table("ranks"), table("buckets"), table("sessions"),
                  table("steps", STEP_COLUMNS, True), table("tensors", None, True), problems, shares=table("shares", None, True))
    _judge(run)
    missing_rows.check(run)
    return run


def _table(file: h5py.File, name: str, columns: list[str] | None, problems: list[str],
           complain: Callable[[str], None] | None) -> pd.DataFrame | None:
    data = read_hdf5.child(file, name)
    if not isinstance(data, h5py.Dataset) or not data.dtype.names or len(data.shape) != 1:
        if complain:
            complain(f"has no table /{name}")
        return None
    there = [
        column for column in columns or data.dtype.names
        if column in data.dtype.names and data.dtype[column].kind in "iuf" and not data.dtype[column].shape
    ]
    lacking = [column for column in NEEDED[name] if column not in there]
    if lacking:
        if complain:
            complain(f"its table /{name} has no column {', '.join(lacking)}")
        return None
    try:
        rows = read_hdf5.rows(data, there)
    except (read_hdf5.TooLarge, read_hdf5.Elsewhere) as error:
        if name == "epochs":
            raise
        problems.append(str(error))
        return None
    except (OSError, RuntimeError, MemoryError) as error:
        if complain is None or name == "epochs":
            raise
        complain(f"its table /{name} cannot be read ({' '.join(str(error).split())})")
        return None
    try:
        return odd_values.checked(name, pd.DataFrame({column: rows[column] for column in there}))
    except odd_values.Odd as error:
        if name == "epochs":
            raise Unreadable(f"is damaged: {error}") from error
        problems.append(f"{error}, which no run has; the table is left out")
        return None


def _judge(run: Run) -> None:
    """Adds what a reader of the tables should know."""
    there, wanted = len(run.epochs), run.wanted_epochs
    if not run.is_finished:
        written = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.path.stat().st_mtime))
        of_all = f" of {wanted}" if wanted is not None else ""
        run.problems.append(f"is unfinished: it has {there}{of_all} epochs and was last written at {written} UTC; "
                            "the run is still going on, or it was ended early")
    elif there == 0:
        run.problems.append("has no epochs")
    if run.sessions is not None and "world_size" in run.sessions and run.sessions["world_size"].nunique() > 1:
        sizes = ", ".join(str(size) for size in run.sessions["world_size"])
        run.problems.append(f"was resumed with another number of ranks ({sizes}): its epochs cannot be compared")
    for column, text in (("train_loss", "training loss"), ("epoch_s", "time")):
        if column in run.epochs and there and not np.isfinite(run.epochs[column]).all():
            first = int(run.epochs.loc[~np.isfinite(run.epochs[column]), "epoch"].iloc[0]) + 1
            run.problems.append(f"its {text} is not finite from epoch {first} on")
    if "skipped_steps" in run.epochs and run.epochs["skipped_steps"].sum() > 0:
        run.problems.append(f"skipped {int(run.epochs['skipped_steps'].sum())} steps with non-finite gradients")
