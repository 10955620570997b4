"""Where results go: what could not be written in the end is told before anything is read or decoded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pardec.models.errors import SpecError


def check_file(target: Path | None, *, added: bool = False) -> None:
    """Refuses a file that could not be made; folders above it need not be there, and are made when it is written.

    Args:
        target: None where nothing is to be written.
        added: what stands in the file already stays; else another file takes its place.

    Raises:
        SpecError: it is a folder or no plain file, one above it is none, or it may not be written.
    """
    if target is None:
        return
    try:
        if target.is_dir():
            raise _refused(target, "it is a folder", "name a file")
        if target.exists() and not target.is_file():
            raise _refused(target, "it is no plain file", "name a file")
        if added and target.exists():
            if not os.access(target, os.W_OK):
                raise _refused(target, "permission denied")
            return
        _check_above(target)
    except OSError as error:  # too long a name, links in a circle
        raise _refused(target, error.strerror or str(error)) from error


def check_folder(target: Path | None) -> None:
    """Refuses a folder that could not be made or written to. Raises SpecError."""
    if target is None:
        return
    try:
        if target.exists() and not target.is_dir():
            raise _refused(target, "it is a file", "name a folder")
        _check_above(target / "new")
    except OSError as error:
        raise _refused(target, error.strerror or str(error)) from error


def check_result(target: Path | None) -> None:
    """Refuses what a result could not be saved to: a file whose name ends in .json, else a folder. Raises SpecError."""
    if target is None or target.suffix == ".json":
        check_file(target)
        return
    if occupied(target):
        raise SpecError(f"{target} exists and is no saved result", hint="choose a new folder, or a name in .json")
    check_folder(target.absolute().parent)  # it is put together beside its place


def occupied(target: Path) -> bool:
    """Whether something stands there that is neither a saved result nor an empty folder."""
    try:
        if not target.exists() or (target / "result.json").is_file():
            return False
        return not target.is_dir() or bool(os.listdir(target))
    except OSError:
        return True


def _check_above(target: Path) -> None:
    """Refuses a file where its nearest folder takes none, by trying."""
    there = next(folder for folder in target.absolute().parents if folder.exists())
    if not there.is_dir():
        raise _refused(target, f"{there} is a file")
    if not os.access(there, os.W_OK):
        raise _refused(target, "permission denied")
    tempfile.TemporaryFile(dir=there).close()


def _refused(target: Path, why: str, hint: str = "choose another place") -> SpecError:
    return SpecError(f"cannot write {target}: {why}", hint=hint)
