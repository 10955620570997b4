"""Files of prompts: JSON lines, which may have other fields, tables with a header, or text with one prompt per line."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pardec.models.errors import SpecError, did_you_mean
from pardec.models.files.json_text import parse

from ..requests.settings import ARGUMENTS, Settings
from .text_files import numbered_lines, read_utf8

FORMAT = (
    'each line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, with an "id" if you like'
)
SETTINGS = tuple(each.name for each in ARGUMENTS.values() if each.per_prompt)  # arguments that one prompt may set
PER_PROMPT = ("prompt", "messages", "input_ids", "label", "prompt_embeds", *SETTINGS)  # fields for `serve_batch`
ANSWERS = ("answer", "answers")  # read by scorers; they do not change decoding
GENERATED = (*ANSWERS, "input_ids", *SETTINGS)  # fields in lines for `pardec generate`
COMPARED = (*ANSWERS, *(name for name in SETTINGS if name != "seed"))  # fields for `compare` and `tune`
_TABLES = {".csv": ",", ".tsv": "\t"}
_REFUSED = (".yaml", ".yml", ".toml", ".xml", ".html", ".parquet", ".xlsx", ".pkl")  # not one prompt per line
_JSON_FIELDS = ("messages", "input_ids", "answers", *(name for name in SETTINGS if name not in ("stop", "template")))


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt: text, a list of chat messages, a list of token ids, or None if there is only a template."""

    id: Any  # the id in the file, else the index
    prompt: Any
    line: int = 0  # line number in its file, from 1; 0 without a file
    fields: Mapping[str, Any] = field(default_factory=dict)  # the other fields of its JSON object

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `generate` that the prompt sets."""
        return {name: self.fields[name] for name in SETTINGS if self.fields.get(name) is not None}


def read_file(file: Path, takes: Collection[str] = ANSWERS) -> list[Item]:
    """The prompts of a file in order: .jsonl and .json files have JSON lines, .csv and .tsv a header, all others text.

    Args:
        takes: the fields that a prompt may have besides id, prompt and messages.

    Raises:
        SpecError: the file cannot be read or has no prompt, or a line, which the message names, cannot be read or has
            a field that is not taken.
    """
    if file.suffix.lower() in _REFUSED:
        raise SpecError(
            f"prompts are not read from {file.suffix} files, got {file}", hint="name a .jsonl, .csv or .txt file"
        )
    content = read_utf8(file, "prompts", hint="name a .jsonl, .csv or .txt file", encoding="utf-8-sig")
    if file.suffix.lower() in _TABLES:
        return _read_table(content, str(file), _TABLES[file.suffix.lower()], takes)
    return read_text(content, str(file), json_lines=file.suffix in (".jsonl", ".json"), takes=takes)


def read_text(content: str, where: str, *, json_lines: bool, takes: Collection[str] = ANSWERS) -> list[Item]:
    """The prompts of `content`, named `where` in errors; empty lines are skipped."""
    lines = numbered_lines(content)
    if not lines:
        raise SpecError(f"{where} has no prompt", hint="write one prompt per line")
    if not json_lines:
        return [Item(index, line.removesuffix("\r"), number) for index, (number, line) in enumerate(lines)]
    return [
        _parse_line(line, index, number, f"{where}, line {number}", takes) for index, (number, line) in enumerate(lines)
    ]


def _parse_line(line: str, index: int, number: int, where: str, takes: Collection[str]) -> Item:
    try:
        value = parse(line, unique=True)
    except ValueError as error:
        raise SpecError(f"{where} is not JSON: {error}", hint=FORMAT) from error
    return read_item(value, index, number, where, takes)


def _read_table(content: str, where: str, delimiter: str, takes: Collection[str]) -> list[Item]:
    """The prompts of a table, whose header names the fields; empty cells are left out."""
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    items: list[Item] = []
    header: list[str] | None = None
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise SpecError(
                f"{where}, line {number} is not a line of a table: {error}",
                hint='put cells with quotes or line breaks in "...", and write "" for each quote in them',
            ) from error
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = _header([cell.strip() for cell in cells], where)
            continue
        line = f"{where}, line {number}"
        if len(cells) != len(header):
            raise SpecError(
                f"{line} has {len(cells)} cells, but the header has {len(header)}",
                hint="quote cells that hold the separator",
            )
        fields = {name: _value(name, cell, line) for name, cell in zip(header, cells, strict=True) if cell.strip()}
        items.append(read_item(fields, len(items), number, line, takes))
    if not items:
        raise SpecError(f"{where} has no prompt", hint="write a header, such as prompt,answer, and one prompt per line")
    return items


def _header(names: list[str], where: str) -> list[str]:
    """The names of a table's columns."""
    if "prompt" not in names and "messages" not in names:
        raise SpecError(
            f"{where} has no column prompt; its header is {', '.join(names)}"[:300],
            hint="the first line names the columns, such as prompt,answer",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"{where} has two columns {twice!r}", hint="keep one of them")
    return names


def _value(name: str, cell: str, where: str) -> Any:
    if name not in _JSON_FIELDS:
        return cell
    try:
        return parse(cell, unique=True)
    except ValueError as error:
        raise SpecError(
            f"{where}: {name} is not JSON: {error}", hint="numbers and lists are written as in JSON"
        ) from error


def read_item(value: Any, index: int, number: int, where: str, takes: Collection[str] = ANSWERS) -> Item:
    """A prompt from a JSON or Python value: text, or an object with its fields; named `where` in errors."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise SpecError(
            f"{where} is {'a list' if isinstance(value, list) else repr(value)}, not an object", hint=FORMAT
        )
    fields = {name: field for name, field in value.items() if name not in ("id", "prompt", "messages")}
    if value.keys() & {"prompt", "messages", "input_ids", "template"}:
        _check_fields(fields, where, takes)
    ident = index if value.get("id") is None else value["id"]
    forms = [name for name in ("prompt", "messages", "input_ids") if value.get(name) is not None]
    if not forms and fields.get("template") is not None:
        return Item(ident, None, number, fields)
    if len(forms) != 1:
        raise SpecError(f'{where} has neither or both of "prompt" and "messages"', hint=FORMAT)
    prompt = value[forms[0]]
    if not isinstance(prompt, str if forms == ["prompt"] else list):
        raise SpecError(f"{where}: the prompt is {type(prompt).__name__}", hint=FORMAT)
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise SpecError(f"{where}: the prompt is empty", hint="give at least one word")
    if forms == ["messages"] and not all(map(_is_message, prompt)):
        raise SpecError(f'{where}: a message has no "role" or no "content"', hint=FORMAT)
    if forms == ["input_ids"] and not all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
        raise SpecError(f"{where}: input_ids is not a list of whole numbers", hint='{"input_ids": [5, 6, 7]}')
    return Item(ident, prompt, number, fields)


def _check_fields(fields: Mapping[str, Any], where: str, takes: Collection[str]) -> None:
    """Refuses an unknown field, which would otherwise be ignored silently."""
    for name in fields:
        if name in takes:
            continue
        known = ("id", "prompt", "messages", *takes)
        if name in PER_PROMPT:
            raise SpecError(
                f"{where} sets {name}, which is not taken for one prompt here",
                hint=f"set it for all prompts, or leave it out; a prompt takes {', '.join(known)}",
            )
        raise SpecError(
            f"{where} has an unknown field {name!r}{did_you_mean(str(name), known)}",
            hint=f"a prompt takes {', '.join(known)}",
        )


def integer_keys(value: Any, where: str) -> Any:
    """The value of `allowed` from JSON, with integers as the keys of every object. Raises SpecError for other keys."""
    if isinstance(value, list):
        return [integer_keys(item, where) for item in value]
    if not isinstance(value, dict):
        return value
    wrong_key = next((key for key in value if not key.isdecimal()), None)
    if wrong_key is not None:
        raise SpecError(f"{where} has the index {wrong_key!r}, which is not a whole number", hint=ALLOWED_FORM)
    return {int(key): item for key, item in value.items()}


ALLOWED_FORM = 'for example {"0": ["yes", "no"]}, or [["yes", "no"], null]'


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def line_settings(item: Item, where: str) -> dict[str, Any]:
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
