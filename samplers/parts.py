"""From a part of a spec to the method it names, and back."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal

from pardec.models.errors import SpecError, did_you_mean
from pardec.samplers.cards import Card, find, written
from pardec.samplers.spec import Part, Spec, parse

MOST = 2**16  # of whole numbers: a method may make something of that size, and no canvas is as long
Named = list[tuple[str, Any]]  # name and method, in the order written


def build(part: Part, family: str | None = None) -> Any:
    """The method a part names, with its parameters read by the types of its fields."""
    card = find(part.name, family)
    try:
        return _made(part, card)
    except SpecError as error:
        if error.hint:
            raise
        raise SpecError(error.message, hint=f'"pardec show {part.name}" explains its parameters') from None


def full(name: str, made: Any) -> Part:
    """A method as a part with every parameter."""
    return Part(name, tuple((f.name, written(getattr(made, f.name))) for f in fields(made)))


def exactness(name: str, made: Any, family: str) -> str:
    """What the method says of itself with its parameters, else its card's word."""
    return str(getattr(made, "exact", find(name, family).exact))


def add_default(stages: Mapping[str, Named], stage: str, text: str, family: str) -> None:
    """Gives `stage` the method of the spec `text` where it has none."""
    if not stages[stage]:
        (part,) = parse(text).parts
        stages[stage].append((part.name, build(part, family)))


def refuse_doubles(spec: Spec, stages: Mapping[str, Named], single: Collection[str]) -> None:
    """Refuses a second policy where one is allowed, and one name twice."""
    for stage, parts in stages.items():
        names = [name for name, _ in parts]
        if stage in single and len(names) > 1:
            raise SpecError(
                f"{str(spec)!r} names {len(names)} {stage} policies ({', '.join(names)}), one is allowed",
                hint=f'keep one; "pardec list samplers --stage {stage}" shows the choices',
            )
        if len(set(names)) < len(names):
            raise SpecError(f"{str(spec)!r} names {max(names, key=names.count)!r} twice", hint="keep one of them")


@cache
def _hints(make: Any) -> dict[str, Any]:
    """The types of a method's parameters; to read them takes longer than all else that makes it."""
    return typing.get_type_hints(make)


def _made(part: Part, card: Card) -> Any:
    known = {f.name: f for f in fields(card.make)}
    hints = _hints(card.make)
    values = {}
    for key, text in part.params:
        if key not in known:
            allowed = f"it takes {', '.join(known)}" if known else "it takes no parameters"
            raise SpecError(f"{part.name}: unknown parameter {key!r}{did_you_mean(key, known)}", hint=allowed)
        values[key] = _read(text, hints[key], f"{part.name}:{key}")
    return card.make(**values)


def _read(text: str, kind: Any, where: str) -> Any:
    """A value by its field's type: bool, int, float, str, a Literal, or one of these or None."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if text.lower() == "none" else _read(text, options[0], where)
    if origin is Literal:
        choices = typing.get_args(kind)
        if text not in choices:
            raise SpecError(f"{where} is one of {', '.join(choices)}, got {text!r}{did_you_mean(text, choices)}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SpecError(f"{where} is true or false, got {text!r}")
        return text.lower() == "true"
    try:
        if kind is int and abs(int(text)) > MOST:
            raise SpecError(f"{where} is at most {MOST}, got {text}")
        return kind(text)
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        what = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise SpecError(f"{where} is {what}, got {text!r}") from None
