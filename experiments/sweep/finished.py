"""Whether a log is complete: the log of a run that has ended well.

Each log is opened in a separate process, since the HDF5 library may crash or hang on a damaged file.
"""
from __future__ import annotations

import os
import pathlib
import resource
import signal

_PATIENCE_S = 60
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TABLES = ("epochs", "ranks", "buckets")


def has_hdf5() -> bool:
    try:
        import h5py  # noqa: F401
    except ImportError:
        return False
    return True


def _look(log: pathlib.Path) -> str:
    """What is wrong with the log; empty if nothing is."""
    import h5py
    try:
        with h5py.File(log, "r", locking=False) as file:
            rows = {table: len(file[table][:]) for table in _TABLES}
            wanted = int(file["config"].attrs["epochs"])
            if not file.attrs["finished"]:
                return f"is not finished: {rows['epochs']} of {wanted} epochs are there"
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        return f"cannot be read ({' '.join(str(error).split())[:200]})"
    return "" if rows["epochs"] == wanted else f"has {rows['epochs']} of {wanted} epochs"


def _look_elsewhere(log: pathlib.Path) -> str:
    begin, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(_PATIENCE_S)
            os.write(end, _look(log).encode(errors="replace"))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(end)
    with open(begin, encoding="utf-8") as answer:
        text = answer.read()
    return text if os.waitpid(child, 0)[1] == 0 else "cannot be read (the HDF5 library fails over it)"


def damage_of(log: pathlib.Path) -> str:
    """Why it is not the log of a run that has ended well; empty if it is. Without h5py it looks only at the first
    bytes. Raises OSError if the file may not be read at all."""
    if not log.is_file():
        return "is no file"
    with open(log, "rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            return "is no HDF5 file"
    return _look_elsewhere(log) if has_hdf5() else ""


def aside(path: pathlib.Path) -> pathlib.Path:
    """A free name beside it, which no reader of logs looks for."""
    number, name = 1, path.with_name(path.name + ".damaged")
    while os.path.lexists(name):
        number += 1
        name = path.with_name(f"{path.name}.damaged-{number}")
    return name
