"""The GGUF files that were converted before and still exist; needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...printable import line
from ..cache_dir import cache_folder, private, require_own
from ..json_text import parse

FOLDER = "gguf"  # name of the folder in the cache
SOURCE = "source.json"  # with the weights: names the file that they were converted from


@dataclass(frozen=True, slots=True)
class Converted:
    """One file, by the name under which it loads."""

    name: str
    family: str
    summary: str
    parameters: int
    path: str


def converted_files() -> list[Converted]:
    """The files, sorted by name. Those that others may have written to are left out."""
    newest = sorted(_files(), key=lambda entry: int(f"0{entry.path.rpartition('-')[2]}"))  # versions of the folders
    return sorted({entry.name: entry for entry in newest}.values(), key=lambda entry: entry.name)


def source_of(folder: Path) -> Path | None:
    """The GGUF file of which `folder` has the config and the tokenizer; None for any other folder."""
    try:
        return Path(str(parse((folder / SOURCE).read_bytes())["file"]))
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _files() -> Iterator[Converted]:
    try:
        if not (cache_folder() / FOLDER).is_dir():
            return
        keys = os.listdir(cache_folder() / FOLDER)
    except OSError:
        return
    for key in keys:
        try:
            if not (cache_folder() / FOLDER / key / SOURCE).is_file():
                continue
            with private(FOLDER, key) as folder:
                source: Any = parse(require_own(folder / SOURCE).read_bytes())
            name, size = str(source["file"]), int(source["parameters"])
            if Path(name).is_file():
                text = line(str(source["summary"]), 80)
                yield Converted(line(name), str(source["family"]), text, size, str(cache_folder() / FOLDER / key))
        except (OSError, LookupError, TypeError, ValueError):
            continue
