"""Operations on a waiting line; the answer's tokens depend on each other, which parallel decoding puts at risk.

In the spirit of the waiting-line tasks of ParallelBench, https://arxiv.org/abs/2510.04767; the texts are pardec's own.
Where a prompt names no position, any will do: each item is then uncertain alone and determined by the others. A line is
written `["Anna", "Tom", "Ben"]`, and a prompt asks for the line alone:

    Put "Leo" into the list as number 2: ["Anna", "Tom"]. Write only the list.    ["Anna", "Leo", "Tom"]

Operation, its arguments and the items decide the split; the phrasing does not.
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import ClassVar

from pardec.models.errors import SpecError

from .base import PEOPLE, Draw, Generator, Problem

NAMES = tuple(PEOPLE)
SHORTEST, LONGEST = 3, 6  # items of the line that is given
FORM = " Write only the list."
_STRICT = re.compile(r'"[^"]*"(?:, "[^"]*")*')


def formatted(items: Iterable[str]) -> str:
    """The items in the form that prompts ask for.

    >>> formatted(("Anna", "Tom"))
    '["Anna", "Tom"]'
    """
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def strictly(text: str) -> tuple[str, ...] | None:
    """The items of the last bracketed list in text; None if it is not in the form that prompts ask for.

    >>> strictly('So it is ["Anna", "Tom"].'), strictly("[Anna, Tom]")
    (('Anna', 'Tom'), None)
    """
    _, opened, after = text.rpartition("[")
    inner, closed, _ = after.partition("]")
    if not opened or not closed or not _STRICT.fullmatch(inner):
        return None
    return tuple(inner[1:-1].split('", "'))


def leniently(text: str) -> tuple[str, ...]:
    """The items of the last list in text; brackets, quotes, spaces and a final comma are optional.

    >>> leniently("[ Anna,Tom, ]"), leniently('"Anna" ,Tom')
    (('Anna', 'Tom'), ('Anna', 'Tom'))
    """
    inner = text.rpartition("[")[2].partition("]")[0]
    return tuple(item.strip('" \t\r\n') for item in inner.split(",") if item.strip())


@dataclass(frozen=True)
class Query:
    """The question of a prompt: a line, and the operation's item and position (from 1), if it has them; 0 is any."""

    items: tuple[str, ...]
    item: str = ""
    position: int = 0

    def positions(self, last: int) -> Sequence[int]:
        return (self.position,) if self.position else range(1, last + 1)


class WaitingLine(Generator):
    """One operation: its phrasings, with a position and without, and the lines that are right."""

    placed: ClassVar[tuple[str, ...]] = ()
    free: ClassVar[tuple[str, ...]]
    further: ClassVar[int] = 0  # positions beyond the line's end that the operation can name

    @abstractmethod
    def right(self, query: Query) -> list[tuple[str, ...]]:
        """Every line that the strict score accepts."""

    def example(self, query: Query, rng: random.Random) -> tuple[str, ...]:
        """One of the right lines."""
        return rng.choice(self.right(query))

    def lenient_answers(self, query: Query) -> list[tuple[str, ...]]:
        """Every line that the lenient score accepts."""
        return self.right(query)

    def draw(self, rng: random.Random) -> Draw:
        count = rng.randint(SHORTEST, LONGEST)
        item, *items = rng.sample(NAMES, count + 1)
        position = rng.randint(1, count + self.further) if self.placed and rng.random() < 0.5 else 0
        template = rng.choice(self.placed if position else self.free)
        query = Query(tuple(items), item if "{item}" in template else "", position)
        key = "|".join([query.item, str(position), *items])
        answer = self.example(query, random.Random(key))  # depends on this problem alone
        prompt = template.format(items=formatted(items), item=item, position=position) + FORM
        return Draw(key, prompt, formatted(answer))

    def query(self, prompt: object) -> Query:
        """The question in a prompt of this task. Raises SpecError for any other prompt."""
        match = next((m for form in self._forms if (m := form.fullmatch(str(prompt)))), None)
        items = strictly(match["items"]) if match else None
        if match is None or items is None:
            raise SpecError(
                f"{prompt!r} is not a prompt of {self.name}", hint=f'task("{self.name}").problems() makes them'
            )
        fields = match.groupdict()
        return Query(items, fields.get("item", ""), int(fields.get("position", 0)))

    @cached_property
    def _forms(self) -> list[re.Pattern[str]]:
        fields = {"items": r"\[.*\]", "item": r'[^"]*', "position": r"[0-9]+"}
        forms = []
        for template in (*self.placed, *self.free):
            form = re.escape(template + FORM)
            for slot, what in fields.items():
                form = form.replace(re.escape(f"{{{slot}}}"), f"(?P<{slot}>{what})")
            forms.append(re.compile(form))
        return forms

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if the last list of text is a right one in the asked form, `["Anna", "Tom"]`, else 0.0."""
        return float(strictly(text) in self.right(self.query(problem.prompt)))

    def lenient(self, problem: Problem, text: str) -> float:
        """Like `score`, but quotes, brackets and spaces may differ or be missing; shuffle may keep the order."""
        return float(leniently(text) in self.lenient_answers(self.query(problem.prompt)))


class Insert(WaitingLine):
    name = "insert"
    summary = "put one more item into a list, at a given place or anywhere"
    further = 1
    placed = (
        'Put "{item}" into the list as number {position}: {items}.',
        'Write the list with one more, "{item}" as number {position}: {items}.',
    )
    free = (
        'Put "{item}" into the list, the others in the same order: {items}.',
        'Write the list with one more, "{item}", and the others in the same order: {items}.',
    )

    def right(self, query: Query) -> list[tuple[str, ...]]:
        items = query.items
        return [(*items[: at - 1], query.item, *items[at - 1 :]) for at in query.positions(len(items) + 1)]


class Remove(WaitingLine):
    name = "remove"
    summary = "leave one item out of a list, a given one or any"
    placed = (
        "Write the list with number {position} left out: {items}.",
        "The one at number {position} leaves. Write the list of the others: {items}.",
    )
    free = (
        "Write the list with one left out and the others in the same order: {items}.",
        "One of them leaves. Write the list of the others in the same order: {items}.",
    )

    def right(self, query: Query) -> list[tuple[str, ...]]:
        items = query.items
        return [(*items[: at - 1], *items[at:]) for at in query.positions(len(items))]


class Shuffle(WaitingLine):
    name = "shuffle"
    summary = "put the items of a list into another order"
    free = ("Shuffle the list: {items}.", "Put this list into a random order: {items}.")

    def right(self, query: Query) -> list[tuple[str, ...]]:
        return [line for line in permutations(query.items) if line != query.items]

    def example(self, query: Query, rng: random.Random) -> tuple[str, ...]:
        line = query.items
        while line == query.items:
            line = tuple(rng.sample(query.items, len(query.items)))
        return line

    def lenient_answers(self, query: Query) -> list[tuple[str, ...]]:
        return [query.items, *self.right(query)]


class Replace(WaitingLine):
    name = "replace"
    summary = "put another item in the place of one in a list, a given one or any"
    placed = (
        'Replace number {position} in the list with "{item}": {items}.',
        'Change number {position} of the list to "{item}": {items}.',
    )
    free = (
        'Replace one in the list with "{item}": {items}.',
        'Change only one in the list to "{item}": {items}.',
    )

    def right(self, query: Query) -> list[tuple[str, ...]]:
        items = query.items
        return [(*items[: at - 1], query.item, *items[at:]) for at in query.positions(len(items))]


class Sort(WaitingLine):
    name = "sort"
    summary = "put the items of a list into alphabetical order"
    free = ("Sort the list from A to Z: {items}.", "Put this list in order from A to Z: {items}.")

    def right(self, query: Query) -> list[tuple[str, ...]]:
        return [tuple(sorted(query.items))]
