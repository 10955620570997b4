"""Where `generate` takes its prompts from: -p, a file, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.loading.catalog import EMBEDDED
from pardec.models.loading.json_text import parse

from ..io.prompt_files import Item, read_file, read_text
from .common import say

if TYPE_CHECKING:
    from ..api import Model


def read(texts: Sequence[str], file: Path | None) -> list[Item]:
    """The prompts of one command, in order. Raises SpecError."""
    if texts and file is not None:
        raise SpecError("both -p and --prompts are given", hint="keep one of them")
    if texts:
        items = [Item(i, text) for i, text in enumerate(texts)]
    elif file is not None and str(file) != "-":
        items = read_file(file)
    elif sys.stdin is None or sys.stdin.isatty():
        raise SpecError("no prompt is given", hint='pass -p "...", --prompts FILE.jsonl, or pipe prompts in')
    else:
        content = sys.stdin.read()
        items = read_text(content, "standard input", json_lines=content.lstrip().startswith("{"))
    return items


def as_turns(items: list[Item], model: Model, *, chat: bool | None, quiet: bool) -> list[Item]:
    """The prompts with text as a user's message where `chat` says so; None: where the model has a chat template.

    Embedded models, which are trained on the text itself, keep it. What was not asked for is said on stderr.
    """
    embedded = model.path is not None and model.path.parent == EMBEDDED
    texts = sum(isinstance(item.prompt, str) for item in items)
    if chat is None and texts and not embedded and getattr(model.tokenizer, "chat_template", None):
        verb = "is" if texts == 1 else "are"
        what = (
            f"the prompt{'s' * (texts > 1)} {verb}"
            if texts == len(items)
            else f"{texts} of {len(items)} prompts {verb}"
        )
        say(f"{what} in the chat template of {model.name}, as a user's turn; --raw takes the text itself", quiet=quiet)
        chat = True
    if not chat:
        return items
    return [
        replace(item, prompt=[{"role": "user", "content": item.prompt}]) if isinstance(item.prompt, str) else item
        for item in items
    ]


def whole_numbers(text: str, message: str, hint: str) -> list[int]:
    """Whole numbers with commas between them. Raises SpecError with the message and the hint."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(message, hint=hint) from None


def read_stop(texts: Sequence[str] | None) -> list[str] | None:
    r"""The texts of --stop, in which a shell writes a line break as \n and a tab as \t; None where there are none."""
    return [text.replace("\\n", "\n").replace("\\t", "\t") for text in texts] if texts else None


_ALLOWED = 'for example {"0": ["yes", "no"]}, or [["yes", "no"], null], or a list of these with one a prompt'


def read_allowed(file: Path | None) -> Any:
    """What `allowed=` takes, from JSON; the indices of an object are whole numbers written as text.

    Raises SpecError. What the choices mean is checked later.
    """
    if file is None:
        return None
    try:
        return _indexed(parse(file.read_bytes()), file)
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = getattr(error, "strerror", None) or f"it is not JSON: {error}"
        raise SpecError(f"cannot read --allowed {file}: {reason}", hint=_ALLOWED) from error


def _indexed(value: Any, file: Path) -> Any:
    """`value` with numbers as the keys of every object."""
    if isinstance(value, list):
        return [_indexed(item, file) for item in value]
    if not isinstance(value, dict):
        return value
    bad = next((key for key in value if not key.isdecimal()), None)
    if bad is not None:
        raise SpecError(f"{file} names index {bad!r}, which is no whole number", hint=_ALLOWED)
    return {int(key): item for key, item in value.items()}
