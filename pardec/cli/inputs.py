"""Where `generate` takes its prompts from: -p, a file, or standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError

_FORM = 'each line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, with an "id" if you like'


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt: text or a list of chat messages."""

    id: Any
    prompt: str | list[dict[str, Any]]


def read(texts: Sequence[str], file: Path | None, *, chat: bool) -> list[Item]:
    """The prompts of one command, in order; with `chat`, text becomes a user's message.

    Raises:
        SpecError: no prompt, two sources of them, or a line that cannot be read, by number.
    """
    if texts and file is not None:
        raise SpecError("both -p and --prompts are given", hint="keep one of them")
    if texts:
        items = [Item(i, text) for i, text in enumerate(texts)]
    elif file is not None and str(file) != "-":
        try:
            content = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise SpecError(f"cannot read prompts from {file}: {reason}", hint="name a .jsonl or .txt file") from error
        items = _lines(content, str(file), json_lines=file.suffix in (".jsonl", ".json"))
    elif sys.stdin is None or sys.stdin.isatty():
        raise SpecError("no prompt is given", hint='pass -p "...", --prompts FILE.jsonl, or pipe prompts in')
    else:
        content = sys.stdin.read()
        items = _lines(content, "standard input", json_lines=content.lstrip().startswith("{"))
    if chat:
        items = [
            Item(item.id, [{"role": "user", "content": item.prompt}]) if isinstance(item.prompt, str) else item
            for item in items
        ]
    return items


_ALLOWED = 'for example {"0": ["yes", "no"]}, or [["yes", "no"], null], or a list of these with one a prompt'


def read_allowed(file: Path | None) -> Any:
    """What `allowed=` takes, from JSON; the indices of an object are whole numbers written as text.

    Raises:
        SpecError: the file cannot be read, or an index is no number. What the choices mean is checked later.
    """
    if file is None:
        return None
    try:
        return _indexed(json.loads(file.read_text(encoding="utf-8")), file)
    except (OSError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = getattr(error, "strerror", None) or f"it is no JSON: {error}"
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


def _lines(content: str, where: str, *, json_lines: bool) -> list[Item]:
    lines = [(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not lines:
        raise SpecError(f"{where} holds no prompt", hint='pass -p "...", --prompts FILE.jsonl, or pipe prompts in')
    if not json_lines:
        return [Item(at, line) for at, (_, line) in enumerate(lines)]
    return [_parsed(line, at, f"{where}, line {number}") for at, (number, line) in enumerate(lines)]


def _parsed(line: str, at: int, where: str) -> Item:
    try:
        held = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{where} is no JSON: {error}", hint=_FORM) from error
    if isinstance(held, str):
        return Item(at, held)
    if not isinstance(held, dict) or ("prompt" in held) == ("messages" in held):
        raise SpecError(f'{where} has neither or both of "prompt" and "messages"', hint=_FORM)
    prompt = held.get("prompt", held.get("messages"))
    if not isinstance(prompt, str if "prompt" in held else list):
        raise SpecError(f"{where}: the prompt is {type(prompt).__name__}", hint=_FORM)
    return Item(held.get("id", at), prompt)
