"""Reads prompts from -p, a file, or standard input, and the values of other options."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.files.json_text import parse

from ..io.prompt_files import ANSWERS, Item, integer_keys, read_file, read_text
from ..requests import chat_template
from .common import say

if TYPE_CHECKING:
    from ..api import Model


def read(texts: Sequence[str], file: Path | None, takes: Collection[str] = ANSWERS) -> list[Item]:
    """The prompts of one command, in order, with the fields that `takes` names. Raises SpecError."""
    if texts and file is not None:
        raise SpecError("-p and --prompts cannot be combined", hint="pass one of them")
    if texts:
        items = [Item(i, text) for i, text in enumerate(texts)]
    elif file is not None and str(file) != "-":
        items = read_file(file, takes)
    elif sys.stdin is None or sys.stdin.isatty():
        raise SpecError("no prompt is passed", hint='pass -p "...", --prompts FILE.jsonl, or pipe prompts in')
    else:
        content = sys.stdin.read()
        if not content.strip():
            raise SpecError("standard input has no prompt", hint='pass -p "...", --prompts FILE, or pipe prompts in')
        items = read_text(content, "standard input", json_lines=content.lstrip().startswith("{"), takes=takes)
    return items


def as_messages(items: list[Item], model: Model, *, chat: bool | None, quiet: bool) -> list[Item]:
    """Turns text prompts into user messages if `chat`, or with None if the model has a chat template.

    None leaves the prompts of embedded models, which are trained on plain text; a change is printed on stderr.
    """
    texts = sum(isinstance(item.prompt, str) for item in items)
    applied = bool(texts) and chat_template.applies(model, chat)
    if applied and chat is None:
        verb = "is" if texts == 1 else "are"
        what = (
            f"the prompt{'s' * (texts > 1)} {verb}"
            if texts == len(items)
            else f"{texts} of {len(items)} prompts {verb}"
        )
        text = chat_template.sentence(model.name, applied=True, what=what)
        say(text.replace(" (chat=False)", ""), quiet=quiet)
    return [replace(item, prompt=chat_template.as_message(item.prompt)) for item in items] if applied else items


def integers(text: str, message: str, hint: str) -> list[int]:
    """Whole numbers separated by commas. Raises SpecError with the message and the hint."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(message, hint=hint) from None


def read_size(text: str) -> tuple[int, int]:
    """Height and width of "480x720". Raises SpecError for another text."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", text, re.ASCII)
    if match is None:
        raise SpecError(f"a size must be HEIGHTxWIDTH in pixels, got {text!r}", hint="for example --size 256x256")
    return int(match[1]), int(match[2])


def read_stop(texts: Sequence[str] | None) -> list[str] | None:
    r"""The texts of --stop, with \n and \t as line break and tab; None if there are none.

    Raises SpecError for an empty text.
    """
    if texts and not all(texts):
        raise SpecError("--stop has an empty text", hint=r"--stop '\n' ends an answer at a line break; or leave it out")
    return [text.replace("\\n", "\n").replace("\\t", "\t") for text in texts] if texts else None


_ALLOWED_HINT = 'for example {"0": ["yes", "no"]}, or [["yes", "no"], null], or a list of these, one for each prompt'


def read_allowed(file: Path | None) -> Any:
    """The value of `allowed=` from a JSON file, where the keys of an object are whole numbers.

    Raises SpecError. The choices are checked later.
    """
    return None if file is None else integer_keys(_read_json("--allowed", file, _ALLOWED_HINT), str(file))


def read_response_format(file: Path | None) -> Any:
    """The value of `response_format=` from a JSON file. Raises SpecError; the schema is read later."""
    hint = 'for example {"type": "object", "properties": {"name": {"type": "string"}}}'
    return None if file is None else _read_json("--response-format", file, hint)


def _read_json(option: str, file: Path, hint: str) -> Any:
    try:
        return parse(file.read_bytes(), unique=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"it is not JSON: {error}"
        raise SpecError(f"cannot read {option} {file}: {reason}", hint=hint) from error
