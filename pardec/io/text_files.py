"""Reads text files, with an error that says what was to be read from them."""

from __future__ import annotations

from pathlib import Path

from pardec.models.errors import SpecError


def read_utf8(file: Path, what: str, *, hint: str, encoding: str = "utf-8") -> str:
    """The content of a file. Raises SpecError, with this hint, if `what` cannot be read from it."""
    try:
        return file.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SpecError(f"cannot read {what} from {file}: {reason}", hint=hint) from error


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers from 1."""
    # Not splitlines: JSON texts may contain other line separators, such as U+2028.
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
