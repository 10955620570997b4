"""Files of prompts: JSON lines, which may have other fields, or text with one prompt a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError
from pardec.models.loading.json_text import parse

FORMAT = (
    'each line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, with an "id" if you like'
)


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt: text or a list of chat messages."""

    id: Any  # from the file, else its index
    prompt: str | list[dict[str, Any]]
    line: int = 0  # in its file, from 1; 0 without a file
    fields: Mapping[str, Any] = field(default_factory=dict)  # the other fields of its JSON object


def read_file(file: Path) -> list[Item]:
    """The prompts of a file in order: .jsonl and .json files have JSON lines, all others text.

    Raises:
        SpecError: the file cannot be read or has no prompt, or a line, which the message names, cannot be read.
    """
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SpecError(f"cannot read prompts from {file}: {reason}", hint="name a .jsonl or .txt file") from error
    return read_text(content, str(file), json_lines=file.suffix in (".jsonl", ".json"))


def read_text(content: str, where: str, *, json_lines: bool) -> list[Item]:
    """The prompts of `content`, named `where` in errors; empty lines are skipped."""
    # Not splitlines: JSON texts may contain other line separators, such as U+2028.
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise SpecError(f"{where} has no prompt", hint="write one prompt a line")
    if not json_lines:
        return [Item(index, line.removesuffix("\r"), number) for index, (number, line) in enumerate(lines)]
    return [_parse_line(line, index, number, f"{where}, line {number}") for index, (number, line) in enumerate(lines)]


def _parse_line(line: str, index: int, number: int, where: str) -> Item:
    try:
        value = parse(line)
    except ValueError as error:
        raise SpecError(f"{where} is not JSON: {error}", hint=FORMAT) from error
    return read_item(value, index, number, where)


def read_item(value: Any, index: int, number: int, where: str) -> Item:
    """A prompt from a JSON or Python value: text, or an object with its fields; named `where` in errors."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise SpecError(f'{where} has neither or both of "prompt" and "messages"', hint=FORMAT)
    prompt = value.get("prompt", value.get("messages"))
    if not isinstance(prompt, str if "prompt" in value else list):
        raise SpecError(f"{where}: the prompt is {type(prompt).__name__}", hint=FORMAT)
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise SpecError(f"{where}: the prompt is empty", hint="give at least one word")
    if isinstance(prompt, list) and not all(map(_is_message, prompt)):
        raise SpecError(f'{where}: a message has no "role" or no "content"', hint=FORMAT)
    fields = {name: field for name, field in value.items() if name not in ("id", "prompt", "messages")}
    return Item(index if value.get("id") is None else value["id"], prompt, number, fields)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
