"""Declares one argument of `generate`: its meaning, its range, which models take it, and its names elsewhere."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from numbers import Integral, Real
from typing import Any, TypeGuard

from pardec.models.errors import SpecError

MOST_ROWS = 2**20
_WIDTH = 120  # columns of a docstring


class Takes(Flag):
    """Kinds of models, by what they decode."""

    MASKED = auto()  # text, in any order
    AR = auto()  # text, from left to right
    MASKED_IMAGES = auto()  # codes of an image, in any order
    AR_IMAGES = auto()  # codes of an image, from the first on
    VECTORS = auto()  # continuous tokens of an image
    MAPS = auto()  # token maps of an image
    TEXT = MASKED | AR
    CODES = MASKED_IMAGES | AR_IMAGES
    IMAGES = CODES | VECTORS | MAPS
    ALL = TEXT | IMAGES

    @classmethod
    def of_tokens(cls, *, masked: bool, images: bool) -> Takes:
        """The kind of a model of tokens, of text or of the codes of `images`."""
        return (cls.MASKED_IMAGES if masked else cls.AR_IMAGES) if images else (cls.MASKED if masked else cls.AR)


@dataclass(frozen=True, slots=True)
class Option:
    """The option of the command line for an argument."""

    help: str  # its line in --help
    flags: tuple[str, ...] = ()  # its options, if not --name
    images: bool | str = False  # whether `pardec image` has it, or its line in --help there
    alone: bool = False  # only commands that list it have it; other options are in every command that decodes text
    more: Mapping[str, Any] = field(default_factory=dict)  # arguments of `typer.Option`


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of `generate`."""

    name: str = ""
    default: Any = None
    doc: str  # its meaning, for docstrings
    check: Callable[[str, Any, str], None] | None = None  # called with (name, value, example): raises SpecError
    example: str = ""  # a value with its effect: the hint of errors
    takes: Takes = Takes.ALL  # the models that take it
    order: str = ""  # why a model that decodes in any order does not take it
    instead: Mapping[Takes, str] = field(default_factory=dict)  # hints for models that do not take it
    off: tuple[Any, ...] = (None,)  # values that change nothing
    off_elsewhere: tuple[Any, ...] = ()  # values that change nothing in other libraries
    in_request: bool = False  # a loop's request has it, under the same name
    filters: tuple[Any, ...] = ()  # for filters (no effect at temperature 0): values that leave out no token
    fills: bool = False  # decides about the same positions as `response_format` and cannot be combined with it
    per_prompt: bool = False  # a prompt of `serve_batch` and a line of a prompts file may have its own
    compared: bool = False  # `compare` takes it
    option: Option | None = None
    json: str = ""  # its field in requests to the server, where that is not its name
    lm_eval: bool = False  # one of lm-eval's model arguments and generation arguments
    aliases: tuple[str, ...] = ()  # names in other libraries for the same value
    related: tuple[str, ...] = ()  # names that are answered with `hint`, or the example
    hint: str = ""

    @property
    def number(self) -> type[int] | type[float] | None:
        """The type of its values, if they are numbers."""
        return int if isinstance(self.check, Whole) else float if isinstance(self.check, Number) else None

    def verify(self, value: Any) -> None:
        """Raises SpecError for an invalid value."""
        if self.check is not None and not (value is None and self.default is None):
            self.check(self.name, value, self.example)

    def resolved(self, value: Any) -> Any:
        """The value in the form of a loop's request; None if it changes nothing."""
        if value in self.off:
            return None
        return value if self.number is None else self.number(value)

    def check_taken(self, model: str, kind: Takes, value: Any) -> None:
        """Raises SpecError for a value other than the default, if models of this kind do not take the argument."""
        if kind in self.takes or value is self.default or (is_whole(value) and value == self.default):
            return
        if isinstance(value, Sequence) and value in self.off:
            return
        if kind in Takes.TEXT and not self.takes & Takes.TEXT:
            why = f"is for image models and {model} is a text model"
        elif kind in Takes.IMAGES and not self.takes & Takes.IMAGES:
            why = f"is for text and {model} draws images"
        elif kind is Takes.VECTORS:
            why = f"is for tokens with ids; {model} has continuous tokens"
        elif kind is Takes.MAPS:
            why = f"is for tokens that come one by one; {model} draws whole token maps"
        elif kind in Takes.MASKED | Takes.MASKED_IMAGES:
            canvas = "its canvas" if kind is Takes.MASKED else "an image"
            why = f"{self.order or 'goes from left to right'}, and {model} fills {canvas} in any order"
        else:
            why = f"is for masked models and {model} is not one"
        hints = [hint for kinds, hint in self.instead.items() if kind in kinds]
        hint = hints[0].format(value=value) if hints else f"leave {self.name} out"
        raise SpecError(f"{self.name} {why}", hint=hint)

    def described(self, indent: int) -> str:
        """The argument's paragraph in the `Args` of a docstring."""
        first, rest = " " * indent, " " * (indent + 4)
        return textwrap.fill(f"{self.name}: {self.doc}", _WIDTH, initial_indent=first, subsequent_indent=rest)


def argument(default: Any = None, **values: Any) -> Any:
    """A dataclass field that declares an argument by its default and the fields of `Argument`."""
    return field(default=default, metadata={"argument": Argument(default=default, **values)})


# --- ranges ---


@dataclass(frozen=True, slots=True)
class Whole:
    """Checks for whole numbers from `least` to `most`; True and 1.5 are not whole numbers."""

    least: int | None = None
    most: int | None = None  # larger ones are refused before anything of their size is allocated

    def __call__(self, name: str, value: Any, example: str) -> None:
        if is_whole(value) and self.most is not None and value > self.most:
            raise SpecError(f"{name} must be at most {self.most}, got {value!r}", hint=example)
        check_whole(name, value, self.least, hint=example)


@dataclass(frozen=True, slots=True)
class Such:
    """Checks that `test` holds; the message may have {name} and {value}."""

    test: Callable[[Any], bool]
    message: str

    def __call__(self, name: str, value: Any, example: str) -> None:
        if not self.test(value):
            raise SpecError(self.message.format(name=name, value=value), hint=example)


class Number:
    """Checks for finite numbers that satisfy rules, each given as words and a test."""

    def __init__(self, *rules: tuple[str, Callable[[float], bool]]) -> None:
        self.rules = rules

    def __call__(self, name: str, value: Any, example: str) -> None:
        if not is_number(value):
            kind = "a finite number" if isinstance(value, Real) and not isinstance(value, bool) else "a number"
            raise SpecError(f"{name} must be {kind}, got {value!r}", hint=example)
        for words, holds in self.rules:
            if not holds(float(value)):
                raise SpecError(f"{name} must be {words}, got {value!r}", hint=example)


def check_whole(name: str, value: Any, least: int | None, *, hint: str) -> None:
    """Raises SpecError unless `value` is a whole number of at least `least`; True and 1.5 are none."""
    rule = "a whole number" if least is None else f"a whole number of at least {least}"
    if not is_whole(value) or (least is not None and value < least):
        raise SpecError(f"{name} must be {rule}, got {value!r}", hint=hint)


def check_count(name: str, value: Any, example: str = "") -> None:
    """Refuses a sequence of more entries than one request may have."""
    if isinstance(value, Sequence) and len(value) > MOST_ROWS:
        raise SpecError(
            f"{name} has {len(value)} entries, and one call takes at most {MOST_ROWS}", hint="make several calls"
        )


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number; True is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether the value is a finite number; True is not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floating-point ones
        return False
