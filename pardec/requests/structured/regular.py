"""Regular expressions over UTF-8 bytes, and the automaton of their derivatives.

    d_b(r) = {w : b w in r}        Brzozowski, https://doi.org/10.1145/321239.321249

A state of the automaton is the expression of what may still follow, so that the shortest way to an end is read off it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property


class Expression:
    """A set of byte strings; its hash is computed once.

    Attributes:
        nullable: whether the empty string is in it.
        shortest: of its shortest strings, the first in the order of bytes; None where it has none.
        longest: bytes of its longest string; None where there is none.
        reserve: the most bytes from any prefix of its strings to that prefix's shortest end.
    """

    nullable: bool
    shortest: bytes | None
    longest: int | None
    reserve: int

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), *(getattr(self, field.name) for field in fields(self))))  # type: ignore[arg-type]

    def derive(self, byte: int) -> Expression:
        """The strings that may follow `byte`."""
        raise NotImplementedError

    def parts(self) -> Iterator[Expression]:
        """The expressions of which it consists."""
        return iter(())

    def regex(self) -> str:
        """The expression in the syntax of Rust's crate `regex`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Literal(Expression):
    """One string."""

    value: bytes

    @property
    def nullable(self) -> bool:  # type: ignore[override]
        return not self.value

    @property
    def shortest(self) -> bytes:  # type: ignore[override]
        return self.value

    @property
    def longest(self) -> int:  # type: ignore[override]
        return len(self.value)

    @property
    def reserve(self) -> int:  # type: ignore[override]
        return len(self.value)

    def derive(self, byte: int) -> Expression:
        return Literal(self.value[1:]) if self.value[:1] == bytes([byte]) else NOTHING

    def regex(self) -> str:
        return "".join(_escape(char) for char in self.value.decode())


@dataclass(frozen=True)
class Choice(Expression):
    """The strings of all options; `choice` makes one."""

    options: tuple[Expression, ...]

    def __hash__(self) -> int:
        return self._hash

    def parts(self) -> Iterator[Expression]:
        return iter(self.options)

    @cached_property
    def nullable(self) -> bool:  # type: ignore[override]
        return any(option.nullable for option in self.options)

    @cached_property
    def shortest(self) -> bytes | None:  # type: ignore[override]
        each = [option.shortest for option in self.options if option.shortest is not None]
        return min(each, key=lambda value: (len(value), value), default=None)

    @cached_property
    def longest(self) -> int | None:  # type: ignore[override]
        each = [option.longest for option in self.options]
        return None if None in each else max((length for length in each if length is not None), default=0)

    @cached_property
    def reserve(self) -> int:  # type: ignore[override]
        return max((option.reserve for option in self.options), default=0)

    def derive(self, byte: int) -> Expression:
        return choice([option.derive(byte) for option in self.options])

    def regex(self) -> str:
        return "(" + "|".join(option.regex() for option in self.options) + ")"


NOTHING = Choice(())
EMPTY = Literal(b"")


@dataclass(frozen=True)
class Concatenation(Expression):
    """One item after the other; `sequence` makes one."""

    items: tuple[Expression, ...]

    def __hash__(self) -> int:
        return self._hash

    def parts(self) -> Iterator[Expression]:
        return iter(self.items)

    @cached_property
    def nullable(self) -> bool:  # type: ignore[override]
        return all(item.nullable for item in self.items)

    @cached_property
    def shortest(self) -> bytes | None:  # type: ignore[override]
        each = [item.shortest for item in self.items]
        return None if None in each else b"".join(value for value in each if value is not None)

    @cached_property
    def longest(self) -> int | None:  # type: ignore[override]
        each = [item.longest for item in self.items]
        return None if None in each else sum(length for length in each if length is not None)

    @cached_property
    def reserve(self) -> int:  # type: ignore[override]
        least, most = 0, 0
        for item in reversed(self.items):
            most = max(most, item.reserve + least)
            least += len(item.shortest or b"")
        return most

    def derive(self, byte: int) -> Expression:
        ways = []
        for at, item in enumerate(self.items):
            ways.append(sequence([item.derive(byte), *self.items[at + 1 :]]))
            if not item.nullable:
                break
        return choice(ways)

    def regex(self) -> str:
        return "".join(item.regex() for item in self.items)


@dataclass(frozen=True)
class Repeat(Expression):
    """`item` repeated between a least and a most number of times; None is any number."""

    item: Expression
    least: int = 0
    most: int | None = None

    def __hash__(self) -> int:
        return self._hash

    def parts(self) -> Iterator[Expression]:
        return iter((self.item,))

    @property
    def nullable(self) -> bool:  # type: ignore[override]
        return self.least == 0 or self.item.nullable

    @property
    def shortest(self) -> bytes | None:  # type: ignore[override]
        if self.least and self.item.shortest is None:
            return None
        return (self.item.shortest or b"") * self.least

    @property
    def longest(self) -> int | None:  # type: ignore[override]
        return None if self.most is None or self.item.longest is None else self.most * self.item.longest

    @property
    def reserve(self) -> int:  # type: ignore[override]
        return self.item.reserve + max(self.least - 1, 0) * len(self.item.shortest or b"")

    def derive(self, byte: int) -> Expression:
        if self.most == 0:
            return NOTHING
        most = None if self.most is None else self.most - 1
        return sequence([self.item.derive(byte), Repeat(self.item, max(self.least - 1, 0), most)])

    def regex(self) -> str:
        return f"({self.item.regex()}){{{self.least},{'' if self.most is None else self.most}}}"


@dataclass(frozen=True)
class Character(Expression):
    """One character of `ascii`, or with `wide` any character beyond ASCII."""

    ascii: frozenset[int]
    wide: bool = False
    nullable = False

    @property
    def shortest(self) -> bytes | None:  # type: ignore[override]
        return bytes([min(self.ascii)]) if self.ascii else _WIDE[0].shortest if self.wide else None

    @property
    def longest(self) -> int:  # type: ignore[override]
        return 4 if self.wide else 1

    @property
    def reserve(self) -> int:  # type: ignore[override]
        return 4 if self.wide else 1

    def derive(self, byte: int) -> Expression:
        if byte in self.ascii:
            return EMPTY
        return _AFTER_FIRST_BYTE.get(byte, NOTHING) if self.wide else NOTHING

    def regex(self) -> str:
        listed = "".join(_escape(chr(byte)) for byte in sorted(self.ascii))
        options = [f"[{listed}]"] if listed else []
        return "(" + "|".join([*options, *([r"[^\x00-\x7f]"] if self.wide else [])]) + ")"


@dataclass(frozen=True)
class _Byte(Expression):
    """One byte of a longer character."""

    first: int
    last: int
    nullable = False
    longest = reserve = 1

    @property
    def shortest(self) -> bytes:  # type: ignore[override]
        return bytes([self.first])

    def derive(self, byte: int) -> Expression:
        return EMPTY if self.first <= byte <= self.last else NOTHING


def _bytes(*ranges: tuple[int, int]) -> Concatenation:
    return Concatenation(tuple(_Byte(*each) for each in ranges))


_NEXT = (0x80, 0xBF)
_WIDE = (  # byte ranges of valid UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF
    _bytes((0xC2, 0xDF), _NEXT),
    _bytes((0xE0, 0xE0), (0xA0, 0xBF), _NEXT),
    _bytes((0xE1, 0xEC), _NEXT, _NEXT),
    _bytes((0xED, 0xED), (0x80, 0x9F), _NEXT),
    _bytes((0xEE, 0xEF), _NEXT, _NEXT),
    _bytes((0xF0, 0xF0), (0x90, 0xBF), _NEXT, _NEXT),
    _bytes((0xF1, 0xF3), _NEXT, _NEXT, _NEXT),
    _bytes((0xF4, 0xF4), (0x80, 0x8F), _NEXT, _NEXT),
)


def _after_first_byte(byte: int) -> Expression:
    """The expression after the first byte of a character beyond ASCII."""
    ways = [way.items[1:] for way in _WIDE if not isinstance(way.items[0].derive(byte), Choice)]
    return NOTHING if not ways else ways[0][0] if len(ways[0]) == 1 else Concatenation(ways[0])


_AFTER_FIRST_BYTE = {byte: rest for byte in range(0x80, 0x100) if (rest := _after_first_byte(byte)) != NOTHING}


def literal(value: str) -> Expression:
    """The one string `value`."""
    return Literal(value.encode())


def characters(value: str, *, wide: bool = False) -> Expression:
    """Any one character of `value`, which is ASCII."""
    return Character(frozenset(value.encode()), wide)


def sequence(items: Iterable[Expression]) -> Expression:
    """One item after the other."""
    flat: list[Expression] = []
    for item in items:
        if item == NOTHING:
            return NOTHING
        for each in item.items if isinstance(item, Concatenation) else (item,):
            if isinstance(each, Literal) and flat and isinstance(flat[-1], Literal):
                flat[-1] = Literal(flat[-1].value + each.value)
            elif not (each == EMPTY or (isinstance(each, Repeat) and each.most == 0)):
                flat.append(each)
    return EMPTY if not flat else flat[0] if len(flat) == 1 else Concatenation(tuple(flat))


def choice(options: Iterable[Expression]) -> Expression:
    """The strings of all options."""
    flat: dict[Expression, None] = {}
    for option in options:
        for each in option.options if isinstance(option, Choice) else (option,):
            flat[each] = None
    for each in flat if len(flat) > 1 else ():
        if each in _TAKES_ALL:
            return each
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


_TAKES_ALL: set[Expression] = set()  # options that contain all other options of a choice


def takes_all(expression: Expression) -> Expression:
    """Records that `choice` drops all other options if this one is present."""
    _TAKES_ALL.add(expression)
    return expression


def byte_classes(expression: Expression) -> list[int]:
    """The class of each byte [256]: bytes of one class lead to the same states everywhere."""
    single: set[int] = set()  # bytes of literals: each is a class of its own
    sets: set[frozenset[int]] = set()
    waiting, known = [expression], {expression}
    while waiting:
        each = waiting.pop()
        if isinstance(each, Literal):
            single.update(each.value)
        elif isinstance(each, Character):
            sets.add(each.ascii)
            if each.wide:
                waiting += [way for way in _WIDE if way not in known]
                known |= set(_WIDE)
        elif isinstance(each, _Byte):
            sets.add(frozenset(range(each.first, each.last + 1)))
        new = [part for part in each.parts() if part not in known]
        known |= set(new)
        waiting += new
    classes = [0] * 256
    for number, byte in enumerate(sorted(single), 1):
        classes[byte] = number
    for one in sets:
        pairs = {(classes[byte], byte in one) for byte in range(256)}
        number_of = {pair: at for at, pair in enumerate(sorted(pairs))}
        classes = [number_of[classes[byte], byte in one] for byte in range(256)]
    return classes


def optional(item: Expression) -> Expression:
    """`item`, or nothing."""
    return choice([EMPTY, item])


class States:
    """States in the order in which bytes first lead to them; 0 is the start, -1 the dead end."""

    _next: list[dict[int, int]]  # per state, its successors by the bytes tried so far

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`."""
        known = self._next[state].get(byte)
        return self._advance(state, byte) if known is None else known

    def run(self, state: int, value: Sequence[int]) -> int:
        """The state after the bytes `value`."""
        for byte in value:
            if state < 0:
                break
            state = self.step(state, byte)
        return state

    def _advance(self, state: int, byte: int) -> int:
        """Computes the state after `byte`, which is then stored."""
        raise NotImplementedError


class Automaton(States):
    """The states of an expression in the order of discovery; 0 is the start, -1 the dead end."""

    def __init__(self, expression: Expression) -> None:
        self.states: list[Expression] = [expression]
        self.work = 0  # options that were derived
        self._index: dict[Expression, int] = {expression: 0}
        self._next: list[dict[int, int]] = [{}]
        self._by_class: list[dict[int, int]] = [{}]

    @cached_property
    def classes(self) -> list[int]:
        """The class of each byte [256]."""
        return byte_classes(self.states[0])

    def accepts(self, state: int) -> bool:
        """Whether a string may end there."""
        return self.states[state].nullable

    def final(self, state: int) -> bool:
        """Whether a string must end there."""
        return self.states[state] == EMPTY

    def row(self, state: int) -> list[int]:
        """The state after each byte [256]."""
        representatives = {of: byte for byte, of in reversed(list(enumerate(self.classes)))}
        successors = {of: self.step(state, byte) for of, byte in representatives.items()}
        return [successors[of] for of in self.classes]

    def explore(self, most: int) -> bool:
        """Visits every state; False if that takes more than `most` options."""
        representatives = {of: byte for byte, of in reversed(list(enumerate(self.classes)))}.values()
        state = 0
        while state < len(self.states):
            for byte in representatives:
                self.step(state, byte)
            state += 1
            if self.work > most:
                return False
        return True

    def _advance(self, state: int, byte: int) -> int:
        of = self.classes[byte]
        index = self._by_class[state].get(of)
        if index is None:
            here = self.states[state]
            self.work += len(here.options) if isinstance(here, Choice) else 1
            rest = here.derive(byte)
            if rest.shortest is None:
                index = -1
            elif rest in self._index:
                index = self._index[rest]
            else:
                index = self._index[rest] = len(self.states)
                self.states.append(rest)
                self._next.append({})
                self._by_class.append({})
            self._by_class[state][of] = index
        self._next[state][byte] = index
        return index


def _escape(char: str) -> str:
    """A character in a regular expression, inside a class or outside, and in a Lark terminal."""
    return char if char.isalnum() or ord(char) > 0x7F else f"\\x{ord(char):02x}"
