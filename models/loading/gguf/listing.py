"""The GGUF files that were converted before and are still there; no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...printable import line
from ..cache_dir import cache_folder, private, require_own
from ..sources import read_json

FOLDER = "gguf"  # of the cache
SOURCE = "source.json"  # beside the weights: what they were converted from


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
    return sorted(_files(), key=lambda entry: entry.name)


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
                source: dict[str, Any] = read_json(require_own(folder / SOURCE))
            name, size = str(source["file"]), int(source["parameters"])
            if Path(name).is_file():
                text = line(str(source["summary"]), 80)
                yield Converted(line(name), str(source["family"]), text, size, str(cache_folder() / FOLDER / key))
        except (OSError, ModelError, KeyError, TypeError, ValueError):
            continue
