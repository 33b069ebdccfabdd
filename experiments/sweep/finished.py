"""Whether a log is complete: the log of a run that has ended well.

Each log is opened in a separate process, since the HDF5 library may crash or hang on a damaged file. This process may
take no more memory than the file can justify, as dpreport's.
"""
from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
from collections.abc import Callable
from typing import Any

_PATIENCE_S = 60
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TABLES = ("epochs", "ranks", "buckets")
_LONGEST_REASON = 200


class Unreadable(Exception):
    """Why a log cannot be read, in one clause."""


def has_hdf5() -> bool:
    try:
        import h5py  # noqa: F401
    except ImportError:
        return False
    return True


def rows_of(file: Any, table: str) -> Any:
    """All columns of the rows. Throws Unreadable and what h5py and report.read_hdf5 throw."""
    import h5py

    from report import read_hdf5
    data = read_hdf5.child(file, table)
    if not isinstance(data, h5py.Dataset) or not data.dtype.names or len(data.shape) != 1:
        raise Unreadable(f"has no table /{table}")
    return read_hdf5.rows(data, list(data.dtype.names))


def _look(file: Any) -> str:
    """What is wrong with the log; empty if nothing is."""
    import h5py

    from report import read_hdf5
    rows = {table: len(rows_of(file, table)) for table in _TABLES}
    config = read_hdf5.child(file, "config")
    if not isinstance(config, h5py.Group):
        raise Unreadable("has no group /config")
    wanted = int(read_hdf5.attributes(config)["epochs"])
    if not read_hdf5.attributes(file)["finished"]:
        return f"is not finished: {rows['epochs']} of {wanted} epochs are there"
    return "" if rows["epochs"] == wanted else f"has {rows['epochs']} of {wanted} epochs"


def _answer(log: pathlib.Path, look: Callable[[Any], Any]) -> dict[str, Any]:
    import h5py

    from report import read_hdf5
    try:
        with read_hdf5.bounded_memory(log), h5py.File(log, "r", locking=False) as file:
            return {"found": look(file)}
    except Unreadable as error:
        return {"why": str(error)}
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, read_hdf5.TooLarge,
            read_hdf5.Elsewhere) as error:
        return {"why": f"cannot be read ({' '.join(str(error).split())[:_LONGEST_REASON]})"}


def read_elsewhere(log: pathlib.Path, look: Callable[[Any], Any]) -> Any:
    """What `look` finds in the open log, in another process; it must fit into JSON. Throws Unreadable."""
    begin, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(_PATIENCE_S)
            with open(end, "w", encoding="utf-8") as answer:
                json.dump(_answer(log, look), answer)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(end)
    with open(begin, encoding="utf-8") as answer:
        text = answer.read()
    if os.waitpid(child, 0)[1] != 0:
        raise Unreadable("cannot be read (the HDF5 library fails over it)")
    found = json.loads(text)
    if "why" in found:
        raise Unreadable(found["why"])
    return found["found"]


def damage_of(log: pathlib.Path) -> str:
    """Why it is not the log of a run that has ended well; empty if it is. Without h5py it looks only at the first
    bytes. Raises OSError if the file may not be read at all."""
    if not log.is_file():
        return "is no file"
    with open(log, "rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            return "is no HDF5 file"
    if not has_hdf5():
        return ""
    try:
        return str(read_elsewhere(log, _look))
    except Unreadable as error:
        return str(error)


def aside(path: pathlib.Path) -> pathlib.Path:
    """A free name beside it, which no reader of logs looks for."""
    number, name = 1, path.with_name(path.name + ".damaged")
    while os.path.lexists(name):
        number += 1
        name = path.with_name(f"{path.name}.damaged-{number}")
    return name
