"""The folder that caches compiled kernels and tables. Only files that nobody else can have written are read.

Anyone who can write to the folder could inject code or tables, so the folder and its files have to be the user's, not
writable by others and no links. Otherwise nothing is read and nothing saved.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_FD = Path("/proc/self/fd")
_OTHERS = stat.S_IWGRP | stat.S_IWOTH

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """$PARDEC_CACHE, else $XDG_CACHE_HOME/pardec, else ~/.cache/pardec; a relative $XDG_CACHE_HOME counts as none.

    Raises OSError if that would be somewhere below the working directory.
    """
    own, shared = os.environ.get("PARDEC_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        path = Path(os.path.expanduser(own))
    elif os.path.isabs(shared):
        path = Path(shared) / "pardec"
    else:
        path = Path(os.path.expanduser("~")) / ".cache" / "pardec"  # "~" remains where nobody knows a home
    if not path.is_absolute():
        raise OSError(f"PARDEC_CACHE={own} is not an absolute path" if own else "there is no home folder")
    return path


@contextmanager
def private(*below: str) -> Iterator[Path]:
    """The cache's folder, or one below it, made where it is missing. The path stays valid whatever others rename.
    Raises OSError if it cannot be made, or others could write to it.
    """
    path = cache_folder()
    for folder in reversed([path, *path.parents]):
        _make(folder)
    if sys.platform == "win32":  # its folders in a user's profile are the user's, and have no such modes
        for name in below:
            path /= name
            _make(path)
        yield path
        return
    descriptors = [_open(path, path)]
    try:
        for name in below:
            path /= name
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=descriptors[-1])
            descriptors.append(_open(name, path, descriptors[-1]))
        by_number = _FD / str(descriptors[-1])
        yield by_number if by_number.is_dir() else path
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def require_own(file: Path) -> Path:
    """Returns `file` of a `private` folder. Raises OSError if it is missing, a link, or others may have written it."""
    _refuse(os.lstat(file), file, stat.S_ISREG)
    return file


def write(file: Path, content: bytes) -> None:
    """Writes the file whole or not at all, also in a crash: it is on disk before it gets its name. Raises OSError."""
    number, part = tempfile.mkstemp(dir=file.parent)  # for this user alone, whatever the umask
    try:
        with open(number, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(number)
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise
    if sys.platform != "win32":
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def warn_uncached(error: OSError) -> None:
    """Logs, once, that nothing is cached, and why."""
    try:
        folder = str(cache_folder())
    except OSError:
        folder = "a cache"
    _warn_once(folder, error.strerror or str(error))


@cache
def _warn_once(folder: str, why: str) -> None:
    log.warning("the cache folder %s is not used, so every process compiles and computes again: %s", folder, why)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        with suppress(FileExistsError):
            folder.mkdir(0o700)


def _open(name: Path | str, path: Path, parent: int | None = None) -> int:
    """A descriptor of the folder `path`, which is `name` in `parent`. Raises OSError unless it is the user's alone."""
    _refuse(os.stat(name, dir_fd=parent, follow_symlinks=False), path, stat.S_ISDIR)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        _refuse(os.fstat(descriptor), path, stat.S_ISDIR)  # once more: it may be another by now
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse(status: os.stat_result, path: Path, kind: Callable[[int], bool]) -> None:
    """Raises OSError for another kind of file, or one that others own or could write to."""
    if not kind(status.st_mode):
        raise OSError(f"{path} is {'a link' if stat.S_ISLNK(status.st_mode) else 'of the wrong file type'}")
    if sys.platform == "win32":
        return
    if status.st_uid != os.geteuid():
        raise OSError(f"{path} belongs to another user")
    if status.st_mode & _OTHERS:
        raise OSError(f"others may write to {path} (chmod go-w)")
