"""Checks of output paths, made before anything is read or decoded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pardec.models.errors import SpecError

# Endings of other files: a result saved under such a name would be a folder.
_OTHER_FORMATS = (
    *(".txt", ".md", ".csv", ".tsv", ".log", ".out", ".html", ".xml", ".yaml", ".yml", ".toml", ".pdf", ".png"),
    *(".parquet", ".xlsx", ".ndjson", ".jsonlines", ".pkl", ".pt", ".zip", ".gz"),
)
IMAGES = (".png", ".jpg", ".jpeg", ".webp")  # endings of image files that can be written


def check_file(target: Path | None, *, append: bool = False) -> None:
    """Refuses a file that could not be written; missing parent folders are made when it is written.

    Args:
        target: None if nothing is to be written.
        append: the file will be appended to; otherwise it is replaced.

    Raises:
        SpecError: it is a folder or not a regular file, a parent is not a folder, or it may not be written.
    """
    if target is None:
        return
    try:
        if target.is_dir():
            raise _error(target, "it is a folder", "name a file")
        if target.exists() and not target.is_file():
            raise _error(target, "it is not a regular file", "name a file")
        if append and target.exists():
            if not os.access(target, os.W_OK):
                raise _error(target, "permission denied")
            return
        _check_parent(target)
    except OSError as error:  # such as a name that is too long, or links in a circle
        raise _error(target, error.strerror or str(error)) from error


def check_folder(target: Path | None) -> None:
    """Refuses a folder that could not be created or written to. Raises SpecError."""
    if target is None:
        return
    try:
        if target.exists() and not target.is_dir():
            raise _error(target, "it is a file", "name a folder")
        _check_parent(target / "new")
    except OSError as error:
        raise _error(target, error.strerror or str(error)) from error


def check_result(target: Path | None) -> None:
    """Refuses a path where no result can be saved: a file that ends in .json, or else a folder. Raises SpecError."""
    if target is None or target.suffix == ".json":
        check_file(target)
        return
    if target.suffix.lower() in _OTHER_FORMATS:
        raise SpecError(
            f"no {target.suffix} files can be written, got {target}",
            hint="name a .jsonl file for rows, or a .json file or a folder for the whole result; text goes to stdout",
        )
    if occupied(target):
        raise SpecError(f"{target} exists and is not a saved result", hint="choose a new folder, or a name in .json")
    check_folder(target.absolute().parent)  # it is assembled in a folder beside it


def check_figure(target: Path) -> Path:
    """Returns the path of a figure. Raises SpecError unless it ends in .svg or .pdf."""
    if target.suffix.lower() not in (".svg", ".pdf"):
        raise SpecError(f"figures must be SVG or PDF, got {target}", hint="name a file that ends in .svg or .pdf")
    return target


def occupied(target: Path) -> bool:
    """Whether the path exists and is neither a saved result nor an empty folder."""
    try:
        if not target.exists() or (target / "result.json").is_file():
            return False
        return not target.is_dir() or bool(os.listdir(target))
    except OSError:
        return True


def _check_parent(target: Path) -> None:
    """Creates a temporary file in the nearest existing parent folder, to see whether that is possible."""
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise _error(target, f"{parent} is a file")
    if not os.access(parent, os.W_OK):
        raise _error(target, "permission denied")
    tempfile.TemporaryFile(dir=parent).close()


def _error(target: Path, why: str, hint: str = "choose another path") -> SpecError:
    return SpecError(f"cannot write {target}: {why}", hint=hint)
