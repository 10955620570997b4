"""Words errors for clients: the fields of a request replace the arguments in Python."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError

from ..requests.prompts import ContextError
from ..requests.settings import ARGUMENTS
from .errors import RequestError
from .schemas import UNKNOWN, Body, ChatBody

if TYPE_CHECKING:
    from pydantic import ValidationError

_FAULTS = 50  # errors of a body that are examined
CONTEXT = "context_length_exceeded"

_FIELDS = {name: each.json for name, each in ARGUMENTS.items() if each.json}


@contextmanager
def named(body: Body) -> Iterator[None]:
    """Turns a SpecError of the code inside into the error answer to the request with this body."""
    try:
        yield
    except SpecError as error:
        raise refusal(error, body) from error


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of a converted request name the client's fields: `names` maps the chat completion's names to them."""
    try:
        yield
    except RequestError as error:
        instead = names.get(error.param or "")
        if error.code == UNKNOWN and instead is not None:  # the request has the other form's field
            message = f"there is no field {error.param!r}: here it is {instead}"
            raise RequestError(message, param=error.param, code=error.code, status=error.status) from error
        words = "|".join(names)
        message = re.sub(rf"\b({words})\b", lambda matched: names[matched[1]], error.message)
        param = names.get(error.param or "", error.param)
        raise RequestError(message, param=param, code=error.code, headers=error.headers, status=error.status) from error


def refusal(error: SpecError, body: Body) -> RequestError:
    """The answer to a request whose arguments `generate` refuses; it names the wrong field."""
    fields = dict(_FIELDS)
    if isinstance(body, ChatBody):
        fields |= {"prompt": "messages", "input_ids": "messages"}
        if body.max_completion_tokens is not None:
            fields["max_new_tokens"] = "max_completion_tokens"
    names = "|".join(fields)
    message, hint = (
        re.sub(rf"\b({names})\b", lambda matched: fields[matched[1]], re.sub(r"\b(\w+)=(?=[\s,;.]|$)", r"\1", text))
        for text in (error.message, error.hint or "")
    )
    own = [name for name in type(body).model_fields if getattr(body, name) is not None]
    if isinstance(error, ContextError):
        param: str | None = "messages" if isinstance(body, ChatBody) else "prompt"
    else:
        matched = re.search(rf"\b({'|'.join(own)})\b", message)
        param = matched[1] if matched else None
        method = re.match(r"'?([\w-]+)", message)
        if param is None and method and re.search(rf"\b{re.escape(method[1])}\b", getattr(body, "sampler", None) or ""):
            param = "sampler"  # whose methods open their errors
        about = (("prompt", r"caption \d"), ("tools", r"writes calls in"))
        param = param or next((field for field, words in about if field in own and re.search(words, message)), None)
    code = CONTEXT if isinstance(error, ContextError) else None
    text = f"{message}: {hint}" if hint else message
    return RequestError(text, param=param, code=code)


_RULES = {  # pydantic's rules in the words of other messages
    "greater_than_equal": "be at least {ge}",
    "less_than_equal": "be at most {le}",
    "int_type": "be a whole number",
    "int_from_float": "be a whole number",
    "float_type": "be a number",
    "string_type": "be text",
    "bool_type": "be true or false",
    "list_type": "be a list",
    "dict_type": "be an object",
    "model_type": "be an object",
    "model_attributes_type": "be an object",
    "too_short": "have at least {min_length} entries, and has {actual_length}",
    "too_long": "have at most {max_length} entries, and has {actual_length}",
}


def invalid(error: ValidationError, document: Any, schema: type[Body]) -> RequestError:
    """The error for the first wrong field of a body of this schema, in one line."""
    faults = error.errors(include_url=False, include_input=False)[:_FAULTS]
    paths = [_path(each["loc"], document, missing=each["type"] == "missing") for each in faults]
    path = max((each for each in paths if each[:1] == paths[0][:1]), key=len)
    value, known = _at(document, path)
    name = ".".join(map(str, path))
    if faults[0]["type"] == "missing" or not known:
        text = "is missing"
    elif any(fault["type"] == "extra_forbidden" for fault, other in zip(faults, paths, strict=True) if other == path):
        text = "is not supported: leave it out"
    elif value is None and name:
        field = schema.model_fields.get(name)
        text = "is null: give a value" if field and field.is_required() else "is null: leave it out, or give a value"
        if path[-1:] in (["content"], ["prompt"], ["messages"]):
            text = "is null: give text"
    else:
        pairs = zip(faults, paths, strict=True)
        each = dict.fromkeys(_said(fault) for fault, other in pairs if other == path)
        text = ": " + "; or: ".join(each)
        if isinstance(value, str | int | float) and all(words.startswith("must ") for words in each):
            text += f", got {reprlib.repr(value)}"
    opening = name + ("" if text.startswith(":") else " ") if name else ""
    more = faults[0].get("ctx", {})
    text = (opening + text).removeprefix(": ")
    return RequestError(text, param=name or more.get("field"), code=more.get("code"))


def _said(fault: Mapping[str, Any]) -> str:
    """The rule that a value breaks; if a part of a message has an unknown kind, the kinds that are read."""
    if rule := _RULES.get(fault["type"]):
        return "must " + rule.format_map(fault.get("ctx", {}))
    kinds = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}.get(fault["type"])
    if kinds is None:
        return str(fault["msg"]).removeprefix("Value error, ")
    tagged = kinds == "expected_tags"
    media = "content" in fault["loc"] and (tagged or fault["loc"][-1] == "type")
    must = f"{'its type ' if tagged else ''}must be {fault['ctx'][kinds]}"
    return must + (" (images, audio and files are not read)" if media else "")


def _path(location: tuple[int | str, ...], document: Any, *, missing: bool) -> list[int | str]:
    """The keys of an error's location, without the names of a field's alternative types.

    `missing`: the last key is one that the document lacks.
    """
    path: list[int | str] = []
    for at, key in enumerate(location):
        value, _ = _at(document, path)
        nested, there = _at(document, [*path, key]) if isinstance(value, dict | list) else (None, False)
        if isinstance(value, dict) and not isinstance(nested, dict | list) and {*location[at + 1 : at + 2]} & {*value}:
            continue  # the name of an alternative that is also a field, as "text" of a part
        if there or (missing and at == len(location) - 1 and isinstance(value, dict)):
            path.append(key)
    return path


def _at(document: Any, path: list[int | str]) -> tuple[Any, bool]:
    """The value at a path, and whether it exists."""
    for key in path:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None, False
    return document, True
