"""Folders of small PNG images for tests, made without a library for images."""
from __future__ import annotations

import pathlib
import struct
import zlib


def png(seed: int, side: int = 8) -> bytes:
    """A square of grey noise that is different for every seed."""
    rows = b"".join(b"\0" + bytes((seed * 53 + y * 31 + x * x * 7) % 256 for x in range(side)) for y in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_tree(folder: pathlib.Path, train: int = 8, val: int = 4) -> None:
    """Two classes, cat and dog, with this many images each."""
    for part, count in (("train", train), ("val", val)):
        for number, name in enumerate(("cat", "dog")):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                (folder / part / name / f"{i}.png").write_bytes(png(100 * number + i))
