"""JSON strings as regular expressions: any string, and strings of a `pattern` or a `format`."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from .regular import Character, Concatenation, Expression, Repeat, characters, choice, literal, sequence, takes_all

_LONGEST = 4096  # characters that a pattern may demand at once
_MOST_CHARACTERS = 2048  # longest pattern
_DEEPEST = 32  # levels of groups within groups
_PRINTED = frozenset(range(0x20, 0x7F))
_ASCII = _PRINTED - set(b'"\\')  # characters that a string has unescaped
PLAIN = Character(_ASCII, wide=True)  # one character of a string
_ESCAPE = sequence([literal("\\"), characters('"\\/bfnrt')])
_QUOTE = literal('"')
_ANY = Repeat(choice([PLAIN, _ESCAPE]))
takes_all(sequence([_ANY, _QUOTE]))
_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_DIGITS = frozenset(b"0123456789")

FORMATS = {
    "date": r"^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$",
    "time": r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$",
    "date-time": r"^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$",
    "email": r"^[a-z0-9]{1,32}(\.[a-z0-9]{1,16}){0,2}@[a-z0-9]{1,32}(\.[a-z0-9]{1,16}){0,2}\.[a-z]{2,6}$",
    "ipv4": r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$",
    "uuid": r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
}  # days end at 28, and times in Z: every such string is of the format


def strings(least: int = 0, most: int | None = None) -> Expression:
    """Strings of `least` to `most` characters, in quotes; None is no bound."""
    return sequence([_QUOTE, Repeat(choice([PLAIN, _ESCAPE]), least, most), _QUOTE])


def pattern(text: str, refuse: Callable[[str], Exception]) -> Expression:
    """Strings in quotes that Python's `re.search` matches with `text`: all such strings, or a subset.

    Args:
        refuse: makes the error for a reason.
    """
    if len(text) > _MOST_CHARACTERS:
        raise refuse(f"the pattern has {len(text)} characters, and the most is {_MOST_CHARACTERS}")
    try:
        parsed = importlib.import_module("re._parser").parse(text)
    except Exception as error:
        raise refuse(f"the pattern {text!a:.80} cannot be read: {error or type(error).__name__}") from error
    if parsed.state.flags & ~re.UNICODE:
        raise refuse(f"the pattern {text!a:.80} sets flags, which is not supported")
    items = list(parsed)
    constants = importlib.import_module("re._constants")
    begins = bool(items) and items[0] == (constants.AT, constants.AT_BEGINNING)
    items = items[begins:]
    ends = bool(items) and items[-1] == (constants.AT, constants.AT_END)
    items = items[: len(items) - ends]
    try:
        inner = _Reader(text, refuse).all(items)
    except UnicodeEncodeError as error:
        raise refuse(f"the pattern {text!a} holds a lone surrogate") from error
    inner = _fewest(inner, first=not begins, last=not ends)
    parts = [_QUOTE, *([] if begins else [_ANY]), inner, *([] if ends else [_ANY]), _QUOTE]
    result = sequence(parts)
    if result.shortest is None:
        raise refuse(f"no printed text matches the pattern {text!r}")
    return result


def _fewest(inner: Expression, *, first: bool, last: bool) -> Expression:
    """A pattern with any text around it, so that repetitions at its ends need only the minimum count."""
    items = list(inner.items) if isinstance(inner, Concatenation) else [inner]
    ends = ([0] if first else []) + ([len(items) - 1] if last else [])
    for at in ends:
        item = items[at]
        if isinstance(item, Repeat):
            items[at] = Repeat(item.item, item.least, item.least)
    return sequence(items)


class _Reader:
    """Converts Python's syntax tree of a pattern to an expression."""

    def __init__(self, text: str, refuse: Callable[[str], Exception]) -> None:
        self.text, self.refuse = text, refuse
        self._depth = 0

    def all(self, items: Sequence[Any]) -> Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.refuse(f"the pattern {self.text!a:.80} has groups nested more than {_DEEPEST} levels deep")
        result = sequence([self.one(str(kind), value) for kind, value in items])
        self._depth -= 1
        return result

    def one(self, kind: str, value: Any) -> Expression:
        match kind:
            case "LITERAL":
                return literal(json.dumps(chr(value), ensure_ascii=False)[1:-1])
            case "NOT_LITERAL":
                return Character(_ASCII - {value}, wide=value < 0x80)
            case "ANY":
                return choice([PLAIN, sequence([literal("\\"), characters('"\\/')])])
            case "IN":
                return self.members(value)
            case "BRANCH":
                return choice([self.all(option) for option in value[1]])
            case "SUBPATTERN" if not value[1] and not value[2]:
                return self.all(value[3])
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, item = value
                unbounded, inner = str(most) == "MAXREPEAT", self.all(item)
                if int(least) * max(len(inner.shortest or b""), 1) > _LONGEST:
                    raise self.refuse(f"the pattern {self.text!r:.60} requires more than {_LONGEST} characters")
                return Repeat(inner, int(least), None if unbounded else int(most))
        raise self.refuse(f"the pattern {self.text!r} uses {kind.lower()}, which is not supported")

    def members(self, items: Sequence[Any]) -> Expression:
        """A class in brackets; a negated class with categories has ASCII characters only."""
        negated = str(items[0][0]) == "NEGATE"
        ascii_bytes: set[int] = set()  # the members' bytes, printed or not
        others: list[Expression] = []
        wide = True
        for kind, value in items[negated:]:
            name = str(kind)
            if name == "CATEGORY":
                ascii_bytes |= self.category(str(value))
                wide = False
                continue
            if name not in ("LITERAL", "RANGE"):
                raise self.refuse(f"the pattern {self.text!r} uses {name.lower()} in a class, which is not supported")
            first, last = (value, value) if name == "LITERAL" else value
            ascii_bytes |= set(range(first, min(last, 0x7F) + 1))
            if last >= 0x80:
                wide = False
                others += [literal(chr(code)) for code in range(max(first, 0x80), min(last, first + 256) + 1)]
        if negated:
            return Character(_ASCII - ascii_bytes, wide=wide)
        others += [literal(json.dumps(chr(code))[1:-1]) for code in sorted(ascii_bytes & set(b'"\\'))]
        plain = frozenset(ascii_bytes) & _ASCII
        return choice([*([Character(plain)] if plain else []), *others])

    def category(self, name: str) -> frozenset[int]:
        sets = {"DIGIT": _DIGITS, "WORD": _WORD, "SPACE": frozenset(b" ")}
        positive = name.removeprefix("CATEGORY_").removeprefix("NOT_")
        if positive not in sets:
            raise self.refuse(f"the pattern {self.text!r} uses {name.lower()}, which is not supported")
        return _PRINTED - sets[positive] if "NOT_" in name else sets[positive]
