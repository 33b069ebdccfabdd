"""Files of the tools in folders that others may write to, too: no name leads through a link that somebody put there."""
from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator
from typing import IO

# The mode of a new file is what the umask leaves of it.
_MODE = 0o666
NOT_OWN = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)  # what open_own answers for everything else


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], replaces: bool = True) -> Iterator[IO[bytes]]:
    """A file beside `path` under a name that nobody can foresee. It takes the place of `path` at the end, and is
    removed if the block throws. If `path` exists and `replaces` is false, throws FileExistsError."""
    target = pathlib.Path(path)
    handle, unfinished = tempfile.mkstemp(prefix=".unfinished-", dir=target.parent)
    try:
        with open(handle, "w+b") as file:
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(file.fileno(), _MODE & ~umask)
            yield file
        if replaces:
            os.replace(unfinished, target)
        else:
            _rename(unfinished, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def _rename(unfinished: str, target: pathlib.Path) -> None:
    """Throws FileExistsError."""
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        os.rename(unfinished, target)


def begin_file(path: str | os.PathLike[str]) -> int:
    """A descriptor of a new, empty file, which others may read while it grows. What had this name is removed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a file that is no link and has no second name; it is made if `flags` has O_CREAT. Throws OSError,
    with one of NOT_OWN for a link, a folder, a pipe or a file with a second name."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _MODE)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(file)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    return file
