"""Served requests as ids of prompts and answers, read from rows of `pardec generate -o FILE.jsonl` or plain rows.

A row is one JSON line with a prompt ("prompt": text, messages or ids; or "messages") and what was answered ("tokens":
ids, as `pardec generate` and `serve_batch` give them; or "answer": ids or text, which is taken to end with the text).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError
from pardec.models.files.json_text import parse
from pardec.models.model import LanguageModel

from ..io.text_files import numbered_lines, read_utf8
from ..requests.prompts import encode
from .states import Row

_FORMAT = '{"prompt": text, messages or ids, "answer": ids or text}, or a row of pardec generate -o FILE.jsonl'


def served(target: LanguageModel, paths: Sequence[Path]) -> dict[str, list[Row]]:
    """The rows of every file by its path, without an incomplete last line.

    Raises:
        SpecError: a file cannot be read; a line, which is named, is no row, or another model answered it; or no row
            has an answer of two tokens or more.
    """
    files = {str(path): _read(target, path) for path in paths}
    if not any(len(answer) > 1 for rows in files.values() for _, answer in rows):
        raise SpecError(
            f"{', '.join(files) or 'no file'} has no answer of two tokens or more", hint=f"a line is {_FORMAT}"
        )
    return files


def _read(target: LanguageModel, path: Path) -> list[Row]:
    text = read_utf8(path, "rows", hint="name a .jsonl file")
    rows, last = [], text.count("\n") + 1
    for number, line in numbered_lines(text):
        try:
            value = parse(line)
        except ValueError as error:
            if number == last:
                continue
            raise SpecError(f"{path}, line {number} is not JSON: {error}", hint=f"a line is {_FORMAT}") from error
        rows.append(_row(target, value, f"{path}, line {number}"))
    return rows


def _row(target: LanguageModel, value: Any, where: str) -> Row:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} is not an object", hint=f"a line is {_FORMAT}")
    run = value.get("run")
    served_by = run.get("model") if isinstance(run, Mapping) else None
    if served_by not in (None, target.name):
        raise SpecError(
            f"{where} was answered by {served_by}, and the target is {target.name}",
            hint="align the drafter of the model that served the rows",
        )
    prompt = value.get("prompt", value.get("messages"))
    answer = value.get("tokens", value.get("answer"))
    if prompt is None or answer is None:
        missing = "prompt" if prompt is None else "answer"
        raise SpecError(
            f"{where} has no {missing}, only {', '.join(map(str, value)) or 'nothing'}",
            hint=f"a line is {_FORMAT}",
        )
    return _ids(target, prompt, f"the prompt of {where}", prompt=True), _ids(target, answer, f"the answer of {where}")


def _ids(target: LanguageModel, value: Any, what: str, *, prompt: bool = False) -> list[int]:
    """Token ids of text, messages or ids."""
    if isinstance(value, str) and not prompt:
        if target.tokenizer is None:
            raise SpecError(f"{what} is text, and {target.name} comes without a tokenizer", hint="give its ids")
        value = target.tokenizer(value, add_special_tokens=False)["input_ids"]
    if not prompt and not value:
        return []
    messages = isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    text = prompt and (isinstance(value, str) or messages)
    try:
        (row,) = encode(target, value if text else None, None if text else [value], None, 1)
    except SpecError as error:
        raise SpecError(f"{what} cannot be read: {error}", hint=error.hint) from error
    return row.prompt.tolist()
