"""Models in GGUF files, each converted once into a folder that loads like any other."""

from __future__ import annotations

from pathlib import Path

MAGIC = b"GGUF"


def is_gguf(file: Path) -> bool:
    """Whether a file is called .gguf, or begins like one. Raises OSError if it cannot be read."""
    if file.suffix.lower() == ".gguf":
        return True
    with file.open("rb") as handle:
        return handle.read(len(MAGIC)) == MAGIC
