"""Files of prompts: JSON lines with what belongs to each prompt, or text with one a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError
from pardec.models.loading.json_text import parse

FORM = 'each line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, with an "id" if you like'


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt: text or a list of chat messages."""

    id: Any  # as given, else its number from 0
    prompt: str | list[dict[str, Any]]
    line: int = 0  # in its file, from 1; 0 if it comes from none
    fields: Mapping[str, Any] = field(default_factory=dict)  # what else stands in its JSON object


def read_file(file: Path) -> list[Item]:
    """The prompts of a file in order: .jsonl and .json hold JSON lines, all others text.

    Raises:
        SpecError: the file cannot be read or holds no prompt, or a line cannot be read, by number.
    """
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise SpecError(f"cannot read prompts from {file}: {reason}", hint="name a .jsonl or .txt file") from error
    return read_text(content, str(file), json_lines=file.suffix in (".jsonl", ".json"))


def read_text(content: str, where: str, *, json_lines: bool) -> list[Item]:
    """The prompts of `content`, called `where` in errors; empty lines are left out."""
    # Not splitlines: JSON may hold other line separators, such as U+2028, as they are.
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise SpecError(f"{where} holds no prompt", hint='pass -p "...", --prompts FILE.jsonl, or pipe prompts in')
    if not json_lines:
        return [Item(at, line.removesuffix("\r"), number) for at, (number, line) in enumerate(lines)]
    return [_parsed(line, at, number, f"{where}, line {number}") for at, (number, line) in enumerate(lines)]


def _parsed(line: str, at: int, number: int, where: str) -> Item:
    try:
        held = parse(line)
    except ValueError as error:
        raise SpecError(f"{where} is no JSON: {error}", hint=FORM) from error
    return read_item(held, at, number, where)


def read_item(held: Any, at: int, number: int, where: str) -> Item:
    """A prompt as JSON or Python has it: text, or an object with what belongs to it; called `where` in errors."""
    if isinstance(held, str):
        held = {"prompt": held}
    if not isinstance(held, dict) or ("prompt" in held) == ("messages" in held):
        raise SpecError(f'{where} has neither or both of "prompt" and "messages"', hint=FORM)
    prompt = held.get("prompt", held.get("messages"))
    if not isinstance(prompt, str if "prompt" in held else list):
        raise SpecError(f"{where}: the prompt is {type(prompt).__name__}", hint=FORM)
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise SpecError(f"{where}: the prompt is empty", hint="give at least one word")
    if isinstance(prompt, list) and not all(map(_is_message, prompt)):
        raise SpecError(f'{where}: a message has no "role" or no "content"', hint=FORM)
    fields = {name: value for name, value in held.items() if name not in ("id", "prompt", "messages")}
    return Item(at if held.get("id") is None else held["id"], prompt, number, fields)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
