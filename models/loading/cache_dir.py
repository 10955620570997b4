"""Where what is prepared once is saved: compiled kernels, tables. Only what nobody else can have written is read.

Whoever can write to the folder could hand over code or tables of his own, so it and what lies in it has to be the
user's, without a way for others to write and without links. Where that is not so, nothing is read and nothing saved.
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

    Raises:
        OSError: that would be somewhere below the working directory.
    """
    own, shared = os.environ.get("PARDEC_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if own:
        place = Path(os.path.expanduser(own))
    elif os.path.isabs(shared):
        place = Path(shared) / "pardec"
    else:
        place = Path(os.path.expanduser("~")) / ".cache" / "pardec"  # "~" remains where nobody knows a home
    if not place.is_absolute():
        raise OSError(f"PARDEC_CACHE={own} is no absolute path" if own else "there is no home folder")
    return place


@contextmanager
def private(*below: str) -> Iterator[Path]:
    """The cache's folder, or one below it, made where it is missing. Its path leads there whatever others rename.

    Raises:
        OSError: it cannot be made, or others could write to it.
    """
    place = cache_folder()
    for folder in reversed([place, *place.parents]):
        _make(folder)
    if sys.platform == "win32":  # its folders in a user's profile are the user's, and have no such modes
        for name in below:
            place /= name
            _make(place)
        yield place
        return
    held = [_open(place, place)]
    try:
        for name in below:
            place /= name
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=held[-1])
            held.append(_open(name, place, held[-1]))
        by_number = _FD / str(held[-1])
        yield by_number if by_number.is_dir() else place
    finally:
        for folder_id in held:
            os.close(folder_id)


def own(file: Path) -> Path:
    """`file`, of a `private` folder. Raises OSError where it is missing or a link, or others may have written to it."""
    _refuse(os.lstat(file), file, stat.S_ISREG)
    return file


def write(file: Path, content: bytes) -> None:
    """The whole file or none, also after a crash: it is on the disk before it has its name. Raises OSError."""
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


def unkept(error: OSError) -> None:
    """Logs, once, that what is prepared is not saved, and why."""
    try:
        place = str(cache_folder())
    except OSError:
        place = "a cache"
    _tell(place, error.strerror or str(error))


@cache
def _tell(place: str, why: str) -> None:
    log.warning("nothing is kept in %s, every process prepares its own: %s", place, why)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        with suppress(FileExistsError):
            folder.mkdir(0o700)


def _open(name: Path | str, place: Path, parent: int | None = None) -> int:
    """The open folder `place`, which `name` is from `parent`. Raises OSError where it is not the user's alone."""
    _refuse(os.stat(name, dir_fd=parent, follow_symlinks=False), place, stat.S_ISDIR)
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        _refuse(os.fstat(opened), place, stat.S_ISDIR)  # once more: it may be another by now
    except OSError:
        os.close(opened)
        raise
    return opened


def _refuse(found: os.stat_result, place: Path, kind: Callable[[int], bool]) -> None:
    """Raises OSError where something is not of the kind, or others own it or could write to it."""
    if not kind(found.st_mode):
        raise OSError(f"{place} is {'a link' if stat.S_ISLNK(found.st_mode) else 'something else than it should be'}")
    if sys.platform == "win32":
        return
    if found.st_uid != os.geteuid():
        raise OSError(f"{place} belongs to another user")
    if found.st_mode & _OTHERS:
        raise OSError(f"others may write to {place} (chmod go-w)")
