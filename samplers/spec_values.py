"""Converts parts of a spec to the methods they name, and back."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, Literal

from pardec.models.errors import SpecError, did_you_mean
from pardec.models.files.sources import local, local_drafter

from .cards import SINGLE, STAGES_OF, Card, Family, cards_named, find
from .spec import DraftModuleName, ModelName, Part, Spec, format_value, parse

MAX_INT_PARAM = 2**16  # greatest integer parameter: a method may allocate as much; no canvas is as long
Named = list[tuple[str, Any]]  # name and method, in the order of the spec


def build_method(part: Part, family: str | None = None) -> Any:
    """The method a part names, with its parameters read by the types of its fields."""
    with _with_hint(part):
        return _make(part, find(part.name, family))


def check(spec: Spec, family: Family | None = None) -> None:
    """Checks a spec against the cards: names, parameters, models, types of values, and the number of methods.

    Imports no method's file and no torch. Ranges of values, and whether parts go together, are checked when the spec is
    resolved. Without a family, the names decide.
    """
    family = family or family_of(spec)
    stages: dict[str, Named] = {}
    for part in spec.every:
        card = find(part.name, family)
        stages.setdefault(card.stage, []).append((part.name, card))
        known = {entry["name"]: entry["type"] for entry in card.parameters}
        for key, text in part.params:
            _check_known(part, key, known)
            with _with_hint(part):
                value = _read(text, _type_of(known[key]), f"{part.name}:{key}")
            if value is not None and known[key].startswith("ModelName"):
                local(value)
            elif value is not None and known[key].startswith("DraftModuleName"):
                local_drafter(value)
    refuse_doubles(spec, stages)


_FAMILIES: tuple[Family, ...] = ("masked", "ar", "continuous", "scales")


def family_of(spec: Spec) -> Family:
    """The family whose methods a spec names; of several, the first whose methods take its parameters.

    >>> family_of(parse("seeded_jacobi:window=4")), family_of(parse("seeded_jacobi:tol=0"))
    ('ar', 'continuous')
    """
    known = [
        {card.family: {entry["name"] for entry in card.parameters} for card in cards_named(part.name)}
        for part in spec.every
    ]
    shared: list[Family] = [family for family in _FAMILIES if all(family in each for each in known)]
    for family in shared:
        if all({key for key, _ in part.params} <= each[family] for part, each in zip(spec.every, known, strict=True)):
            return family
    own = [next(iter(each)) for each in known if len(each) == 1]
    return [*shared, *own, *_FAMILIES][0]


def full(name: str, method: Any) -> Part:
    """The spec part of a method, with every parameter written out."""
    return Part(name, tuple((f.name, format_value(getattr(method, f.name))) for f in fields(method)))


def exactness(name: str, method: Any, family: str) -> str:
    """The exactness of a method with its parameters: its `exact` attribute, or the exactness on its card."""
    return str(method.exact or find(name, family).exact)


def build_single(spec: Spec, family: Family, what: str) -> tuple[Spec, str, Any]:
    """The resolved spec, the exactness and the method of a family whose samplers have one part.

    Raises SpecError for several parts; `what` is the subject of its "... has one".
    """
    if len(spec.parts) != 1 or spec.cache is not None:
        raise SpecError(f"{str(spec)!r} has several parts, and {what} has one", hint="name one method")
    (part,) = spec.parts
    method = build_method(part, family)
    return Spec((full(part.name, method),)), exactness(part.name, method, family), method


def by_stage(spec: Spec, family: Family) -> dict[str, Named]:
    """The methods of a spec by stage; all stages belong to the family.

    Raises SpecError for a cache that does not follow '@', and for another stage that does.
    """
    stages: dict[str, Named] = {stage: [] for stage in STAGES_OF[family]}
    for part in spec.every:
        stage, behind = find(part.name, family).stage, part is spec.cache
        if stage == "cache" and not behind:
            raise SpecError(f"{part.name!r} is a cache and must follow '@'", hint=f"write ...@{part}")
        if stage != "cache" and behind:
            raise SpecError(f"{part.name!r} after '@' is no cache but a {stage} stage", hint="join it with '+' instead")
        stages[stage].append((part.name, build_method(part, family)))
    return stages


def check_bases(stages: Mapping[str, Named], bases: Mapping[str, type]) -> None:
    """Raises SpecError for a method that is not of the class of the stage for which it is registered."""
    for stage, named in stages.items():
        base = bases[stage]
        for name, method in named:
            if not isinstance(method, base):
                raise SpecError(
                    f"{name!r} is registered for the stage {stage!r} but is no {base.__name__}",
                    hint=f"derive it from {base.__module__}.{base.__name__}",
                )


def add_default(stages: Mapping[str, Named], stage: str, text: str, family: str) -> None:
    """Gives `stage` the method of the spec `text` if it has none."""
    if not stages[stage]:
        (part,) = parse(text).parts
        stages[stage].append((part.name, build_method(part, family)))


def refuse_doubles(spec: Spec, stages: Mapping[str, Named]) -> None:
    """Raises SpecError for a second method of a stage that allows one, and for a repeated name."""
    for stage, parts in stages.items():
        names = [name for name, _ in parts]
        if stage in SINGLE and len(names) > 1:
            raise SpecError(
                f"{str(spec)!r} names {len(names)} {stage} methods ({', '.join(names)}), one is allowed",
                hint=f'keep one; "pardec list samplers --stage {stage}" shows the choices',
            )
        if len(set(names)) < len(names):
            raise SpecError(f"{str(spec)!r} names {max(names, key=names.count)!r} twice", hint="keep one of them")


@contextmanager
def _with_hint(part: Part) -> Iterator[None]:
    """Adds a hint that names the part's page to an error without a hint."""
    try:
        yield
    except SpecError as error:
        if error.hint:
            raise
        raise SpecError(error.message, hint=f'"pardec show {part.name}" explains its parameters') from None


def _check_known(part: Part, key: str, known: Collection[str]) -> None:
    if key not in known:
        allowed = f"it takes {', '.join(known)}" if known else "it takes no parameters"
        raise SpecError(f"{part.name}: unknown parameter {key!r}{did_you_mean(key, known)}", hint=allowed)


def _type_of(text: str) -> Any:
    """The type of an annotation; str, which accepts any value, for names that only the method's module defines."""
    try:
        return typing.get_type_hints(
            types.SimpleNamespace(__annotations__={"it": text}),
            {"Literal": Literal, "ModelName": ModelName, "DraftModuleName": DraftModuleName},
        )["it"]
    except NameError:
        return str


@cache
def _hints(make: Any) -> dict[str, Any]:
    """The types of a method's parameters; cached, since reading them is slow."""
    return typing.get_type_hints(make)


def _make(part: Part, card: Card) -> Any:
    known = {f.name: f for f in fields(card.make)}
    hints = _hints(card.make)
    values = {}
    for key, text in part.params:
        _check_known(part, key, known)
        values[key] = _read(text, hints[key], f"{part.name}:{key}")
    return card.make(**values)


def _read(text: str, kind: Any, where: str) -> Any:
    """Converts text to a field's type: bool, int, float, str, a Literal, or an optional one of these."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if text.lower() == "none" else _read(text, options[0], where)
    if origin is Literal:
        choices = typing.get_args(kind)
        if text not in choices:
            raise SpecError(f"{where} must be one of {', '.join(choices)}, got {text!r}{did_you_mean(text, choices)}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SpecError(f"{where} must be true or false, got {text!r}")
        return text.lower() == "true"
    try:
        if kind is int and abs(int(text)) > MAX_INT_PARAM:
            raise SpecError(f"{where} must be at most {MAX_INT_PARAM}, got {text}")
        return kind(text)
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        what = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise SpecError(f"{where} must be {what}, got {text!r}") from None
