"""The config and the tensors of GGUF files, kept in memory: a header is parsed once, until its file changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError
from .architecture import Target, describe
from .header import Header, StoredTensor, read_header

_kept: dict[tuple[object, ...], Contents] = {}


@dataclass(frozen=True, slots=True)
class Contents:
    """A model in a GGUF file, without its tokenizer."""

    config: Mapping[str, Any]
    tensors: Mapping[Target, StoredTensor]  # published target -> tensor of the file


def identity(file: Path) -> tuple[object, ...]:
    """A value that changes when the file changes. Raises OSError where there is no file."""
    status = file.stat()
    return os.path.realpath(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def contents(file: Path) -> Contents:
    """The model in `file`. Raises ModelError for a file that cannot be read faithfully."""
    try:
        key = identity(file)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from error
    return _kept[key] if key in _kept else keep(key, read_header(file))


def keep(key: tuple[object, ...], header: Header) -> Contents:
    """The model of a file that had the identity `key` before its header was read. Raises ModelError, as `contents`."""
    config, targets = describe(header)
    _kept[key] = Contents(config, {target: header.tensors[name] for name, target in targets.items()})
    return _kept[key]
