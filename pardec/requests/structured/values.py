"""The values that a schema allows in an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pardec.models.errors import SpecError

from .patterns import strings
from .regular import Expression


@dataclass(frozen=True)
class Value:
    """The allowed values at one point of an answer."""

    path: str = field(compare=False)  # the JSON pointer of its schema


@dataclass(frozen=True)
class Scalar(Value):
    """A value of one line of characters: a number, one of an enum, a string of a pattern."""

    expression: Expression


@dataclass(frozen=True)
class Text(Value):
    """A string of `least` to `most` characters; None is no bound."""

    least: int = 0
    most: int | None = None

    @property
    def expression(self) -> Expression:
        return strings(self.least, self.most)


@dataclass(frozen=True)
class Object(Value):
    """An object with these members, in this order: name, value, whether it is required."""

    members: tuple[tuple[str, Value, bool], ...]


@dataclass(frozen=True)
class Map(Value):
    """An object with free keys."""

    value: Value


@dataclass(frozen=True)
class Array(Value):
    """An array of `least` to `most` items (None: no bound); it begins with `prefix`, and `item` repeats after it."""

    item: Value
    least: int
    most: int | None
    prefix: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Union(Value):
    """A value of any of the options."""

    options: tuple[Value, ...]


@dataclass(frozen=True)
class Reference(Value):
    """The value defined under `name`."""

    name: str


@dataclass(frozen=True)
class Schema:
    """The value of an answer, and the definitions that it refers to.

    `ascii` writes other characters of names as escapes, for vocabularies that do not have them.
    """

    root: Value
    definitions: Mapping[str, Value]
    ascii: bool = False

    def key(self, name: str) -> str:
        """A member's name in its quotes, and the colon."""
        return json.dumps(name, ensure_ascii=self.ascii) + ":"

    def resolve(self, value: Value) -> Value:
        """The value that a reference names."""
        while isinstance(value, Reference):
            value = self.definitions[value.name]
        return value


def refusal(path: str, reason: str, hint: str = "") -> SpecError:
    """The error for an unsupported part of a schema."""
    return SpecError(
        f"response_format at {path or '#'}: {reason}", hint=hint or "leave it out, or write the schema without it"
    )
