"""Checks the arguments of `generate` that one line of a prompts file sets for its prompt."""

from __future__ import annotations

from typing import Any

from pardec.models.errors import SpecError

from ..io.prompt_files import Item, integer_keys
from .settings import Settings


def of(item: Item, where: str) -> dict[str, Any]:
    """The checked arguments of a line, named `where` in errors. Raises SpecError."""
    values = item.settings
    if "allowed" in values:
        values["allowed"] = integer_keys(values["allowed"], where)
    try:
        Settings.of(values)
    except SpecError as error:
        raise SpecError(f"{where}: {error.message}", hint=error.hint) from error
    if "seed" in values and not isinstance(values["seed"], int):
        raise SpecError(
            f"{where}: seed must be one whole number, got {values['seed']!r}", hint='{"prompt": "...", "seed": 7}'
        )
    return values
