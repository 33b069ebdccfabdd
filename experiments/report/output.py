"""The output files. They are checked before any work, and dpreport overwrites only files that it wrote.

A page or plot has a mark in its first bytes. A CSV file has no place for a mark, so a folder of CSV files has a
list, LIST, with the hash of each file as dpreport wrote it.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
import stat

from lab.new_files import whole_file

MARK = "<!-- written by dpreport -->"
MARKED_BYTES = 512
LIST = "written-by-dpreport.txt"
HEAD = "# SHA-256 of the tables as dpreport wrote them. It overwrites no other files, and none that were changed.\n"


class NotWritable(Exception):
    """Why an output cannot be written. The text is a whole sentence without its first word, the option."""


def check_file(option: str, path: pathlib.Path) -> None:
    """Checks a file that will be written. Throws NotWritable."""
    _check_no_log(option, path, "the page's")
    _check_folder_of(option, path)
    if _is_there(path, option) and not has_mark(path):
        raise NotWritable(f"{option}: {path} was not written by dpreport and is not overwritten; choose another name, or "
                          "remove it first")


def _check_no_log(option: str, path: pathlib.Path, whose: str) -> None:
    if path.suffix in (".h5", ".hdf5"):
        what = "exists already" if path.exists() else "is the name of a log"
        raise NotWritable(f"{option}: {path} {what}, so nothing is written there; was {whose} own name forgotten?")


def check_new_file(option: str, path: pathlib.Path) -> None:
    """Checks a file that will be written only where there is none. Throws NotWritable."""
    _check_no_log(option, path, "the file's")
    _check_folder_of(option, path)
    if os.path.lexists(path):
        raise NotWritable(f"{option}: {path} exists already and is not overwritten; choose another name")


def check_folder(option: str, path: pathlib.Path) -> None:
    """Checks a folder that will get files. Throws NotWritable."""
    _check_folder_of(option, path)
    if os.path.lexists(path) and not path.is_dir():
        raise NotWritable(f"{option}: {path} is there and is not a folder; it is not overwritten")


def _check_folder_of(option: str, path: pathlib.Path) -> None:
    try:
        is_there = stat.S_ISDIR(path.parent.stat().st_mode)
    except OSError:
        is_there = False
    if not is_there:
        raise NotWritable(f"{option}: there is no folder {path.parent}")


def _is_there(path: pathlib.Path, option: str) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise NotWritable(f"{option}: {path} cannot be written: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise NotWritable(f"{option}: {path} cannot be written: it is a folder")
    if not stat.S_ISREG(mode):
        raise NotWritable(f"{option}: {path} is there and is not a regular file; it is not overwritten")
    return True


def has_mark(path: pathlib.Path) -> bool:
    """Whether it is a page or a plot that dpreport wrote."""
    try:
        with open(path, "rb") as file:
            return MARK.encode() in file.read(MARKED_BYTES)
    except OSError:
        return False


class Outputs:
    """Files to be written. First all are added, then `write` checks and writes all of them."""
    def __init__(self) -> None:
        self._files: list[tuple[str, pathlib.Path, str]] = []  # option, path, text
        self._new: list[tuple[str, pathlib.Path]] = []  # those of them that must not be there
        self._lists: dict[pathlib.Path, dict[str, str]] = {}  # of folders with CSV files: name, hash

    def add_marked(self, option: str, path: pathlib.Path, text: str) -> None:
        assert MARK in text[:MARKED_BYTES // 2]
        self._files.append((option, path, text))

    def add_new(self, option: str, path: pathlib.Path, text: str) -> None:
        """A file that takes the place of no other."""
        self._files.append((option, path, text))
        self._new.append((option, path))

    def add_tables(self, option: str, folder: pathlib.Path, tables: dict[str, str]) -> None:
        """`tables`: text by file name."""
        self._lists[folder] = _read_list(folder)
        self._files += [(option, folder / name, text) for name, text in tables.items()]

    def check(self) -> None:
        """Throws NotWritable if one of the files exists and dpreport did not write it."""
        for option, path in self._new:
            check_new_file(option, path)
        for option, path, _ in self._files:
            if not _is_there(path, option):
                continue
            is_ours = has_mark(path)
            if path.parent in self._lists and path.suffix == ".csv":
                try:
                    is_ours = self._lists[path.parent].get(path.name) == _hash(path.read_bytes())
                except OSError as error:
                    raise NotWritable(f"{option}: {path} cannot be read: {error.strerror}") from error
            if not is_ours:
                raise NotWritable(f"{option}: {path} was not written by dpreport, or was changed since, and is not "
                                  "overwritten; choose another folder, or remove it first")
        for folder in self._lists:
            if os.path.lexists(folder / LIST) and not _is_list(folder / LIST):
                raise NotWritable(f"--csv: {folder / LIST} was not written by dpreport and is not overwritten; choose "
                                  "another folder")

    def write(self) -> None:
        """After check(). Throws NotWritable."""
        for option, path, text in self._files:
            self._make_folder(option, path.parent)
            _replace(option, path, text)
            if path.parent in self._lists and path.suffix == ".csv":
                self._lists[path.parent][path.name] = _hash(text.encode())
        for folder, hashes in self._lists.items():
            _replace("--csv", folder / LIST, HEAD + "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)))

    @staticmethod
    def _make_folder(option: str, folder: pathlib.Path) -> None:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise NotWritable(f"{option}: {folder} cannot be made: {error.strerror}") from error


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _is_list(path: pathlib.Path) -> bool:
    try:
        return path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(HEAD)
    except OSError:
        return False


def _read_list(folder: pathlib.Path) -> dict[str, str]:
    if not _is_list(folder / LIST):
        return {}
    lines = (folder / LIST).read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _replace(option: str, path: pathlib.Path, text: str) -> None:
    """Writes the whole file or nothing."""
    try:
        with whole_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise NotWritable(f"{option}: {path} cannot be written: {error.strerror}") from error
