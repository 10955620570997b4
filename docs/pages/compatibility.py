"""The compatibility tables of masked and autoregressive methods, from the traits that methods declare."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import combinations
from typing import Any, Literal

from pardec.models.errors import SpecError
from pardec.samplers.cards import Card, cards
from pardec.samplers.masked import compatibility as masked
from pardec.samplers.spec import format_value
from pardec.samplers.speculative import compatibility as speculative
from pardec.samplers.traits import Party, Trait


def table(family: str) -> str:
    """One row per trait that matters to another stage: who has it, who needs it, and who is incompatible with it."""
    parties = [each for card in cards() if card.family == family for each in _parties(card)]
    lines = ["| what | has it | needs it | incompatible with it |", "|---|---|---|---|"]
    for trait in Trait:
        needs = _names(name for name, party in parties if trait in party.requires)
        refuses = _names(name for name, party in parties if trait in party.conflicts)
        if not (needs or refuses):
            continue
        has = {"model": "a model", "request": "a request"}.get(trait.by) or _names(
            name for name, party in parties if trait in party.provides
        )
        lines.append(f"| {trait} | {has or '–'} | {needs or '–'} | {refuses or '–'} |")
    return "\n".join(lines)


def _parties(card: Card) -> Iterator[tuple[str, Party]]:
    """The method with its defaults, and with each combination of parameters that has other traits."""
    seen: list[Party] = []
    for name, method in _settings(card):
        party = masked.party(method) if card.family == "masked" else speculative.party(card.stage, method)
        alike = [one for one in seen if _same(one, party)]
        if not alike:
            seen.append(party)
            yield name, party


def _same(one: Party, other: Party) -> bool:
    return (one.provides, set(one.requires), set(one.conflicts)) == (
        other.provides,
        set(other.requires),
        set(other.conflicts),
    )


def _settings(card: Card) -> Iterator[tuple[str, Any]]:
    """The method with its defaults, then with one parameter changed, then with two."""
    hints = typing.get_type_hints(card.make)
    options = [(f.name, value) for f in fields(card.make) for value in _choices(hints[f.name]) if value != f.default]
    for chosen in ((), *((one,) for one in options), *combinations(options, 2)):
        with suppress(SpecError):
            parameters = ",".join(f"{name}={format_value(value)}" for name, value in chosen)
            yield f"{card.name}:{parameters}".removesuffix(":"), card.make(**dict(chosen))


def _choices(kind: Any) -> list[Any]:
    """The values of a choice; for numbers and texts, a few values that turn rules on and off."""
    if typing.get_origin(kind) is Literal:
        return list(typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return [value for part in typing.get_args(kind) for value in _choices(part)]
    few: dict[Any, list[Any]] = {bool: [True, False], int: [0, 1], float: [0.0, 1.0, -1.0], str: ["0.5"]}
    return few.get(kind, [])


def _names(names: Iterator[str]) -> str:
    """The names of methods; a setting is left out if the same method with fewer changed parameters is listed."""
    found = {
        name: {method, *filter(None, rest.split(","))} for name in names for method, _, rest in [name.partition(":")]
    }
    return ", ".join(f"`{name}`" for name, parts in found.items() if not any(one < parts for one in found.values()))
