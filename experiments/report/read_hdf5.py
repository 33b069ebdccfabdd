"""Reads attributes and tables of an HDF5 file, and no more of them than the file can justify.

A small file may claim any number of rows, let thousands of texts share one place, name other files, or hold chunks
that grow a thousandfold when they are decompressed. The program writes its logs without compression; MOST_GROWTH
leaves room for logs that somebody compressed afterwards.
"""
from __future__ import annotations

import math
import pathlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

ALWAYS = 4 << 20  # bytes that a table may have in any file
MOST_GROWTH = 8  # times its bytes in the file
READER_ALWAYS, READER_GROWTH = 64 << 20, 32  # of the process that reads: tables are copied several times
LONGEST_TEXT = 4096  # characters; no text of ours is nearly as long
PAGE = resource.getpagesize()


class TooLarge(Exception):
    """What claims more than the file can justify, in one clause."""


class Elsewhere(Exception):
    """What lies in another file, in one clause."""


def printable(text: str) -> str:
    """The text without characters that control a terminal or that XML does not allow."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


@contextmanager
def bounded_memory(path: pathlib.Path, always: int = READER_ALWAYS, growth: int = READER_GROWTH) -> Iterator[None]:
    """Limits what this process may allocate while it reads the file: `always` bytes and `growth` times its size. An
    allocation beyond that fails; HDF5 then reports an error or crashes, and may never free what it had."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    in_use = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * PAGE
    size = path.stat().st_size if path.exists() else 0
    limit = in_use + always + growth * size
    limits = [bound for bound in (limit, before, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _bytes_of(count: int) -> str:
    return f"{count:,} bytes"


def file_bytes(group: h5py.Group) -> int:
    return int(group.file.id.get_filesize())


def child(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """The group or table of that name in this file; a link into another file is none."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        return None
    return group.get(name)


def attributes(group: h5py.Group) -> dict[str, Any]:
    """Throws TooLarge."""
    return {printable(str(name)): _plain(_attribute(group, name)) for name in group.attrs}


def _attribute(group: h5py.Group, name: str) -> Any:
    kept = group.attrs.get_id(name)
    claimed = math.prod(kept.shape) * kept.dtype.itemsize
    if claimed > file_bytes(group):
        raise TooLarge(f"its attribute {printable(str(name))} claims {_bytes_of(claimed)}, and the file has "
                       f"{_bytes_of(file_bytes(group))}")
    return group.attrs[name]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return printable(value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "...")
    if isinstance(value, h5py.Empty):
        return ""
    return value.item() if isinstance(value, np.generic) else value


def rows(data: h5py.Dataset, columns: list[str]) -> np.ndarray:
    """These columns of all rows. Throws TooLarge and Elsewhere."""
    _check_size(data)
    return data.fields(columns)[:] if columns else np.empty(data.shape, dtype=[])


def values(data: h5py.Dataset) -> np.ndarray:
    """Throws TooLarge and Elsewhere."""
    _check_size(data)
    return data[()]


def _check_size(data: h5py.Dataset) -> None:
    name = data.name
    if data.external or data.is_virtual:
        raise Elsewhere(f"its table {name} lies in other files")
    item, stored = data.id.get_type().get_size(), min(data.id.get_storage_size(), file_bytes(data.parent))
    # HDF5 decompresses whole chunks.
    claimed = item * max(math.prod(data.shape), math.prod(data.chunks) if data.chunks and data.shape[0] else 0)
    if claimed > max(ALWAYS, MOST_GROWTH * stored):
        raise TooLarge(f"its table {name} claims {_bytes_of(claimed)}, and {_bytes_of(stored)} of it are in the file")
