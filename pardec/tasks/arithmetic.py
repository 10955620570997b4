"""Word problems of one to three operations, answered in steps: `12 + 7 = 19; 19 * 3 = 57; answer 57`.

Every number, and every result on the way, lies in 0..99. A problem is composed of an opening, one sentence per
operation, and a question. Sentences and numbers decide the split; names and things do not.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from .base import PEOPLE, Draw, Generator, Problem, words_of

THINGS = (
    "apples", "pears", "plums", "eggs", "books", "coins", "cards", "shells",
    "stamps", "marbles", "pens", "cups", "balls", "cookies", "stones", "candles",
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    """Sentences that fit together. Slots: name, he, him (the person), other, things, and the number n."""

    openings: tuple[str, ...]
    sentences: dict[str, tuple[str, ...]]  # operator -> templates
    questions: tuple[str, ...]


PERSON = Story(
    openings=(
        "{name} has {n} {things}.",
        "{name} starts with {n} {things}.",
        "{name} owns {n} {things}.",
        "This morning {name} has {n} {things}.",
    ),
    sentences={
        "+": (
            "{He} buys {n} more.",
            "{He} finds {n} {things}.",
            "A friend gives {him} {n} more.",
            "{He} wins {n} {things}.",
            "{other} brings {him} {n} {things}.",
            "Then {he} gets {n} more from {other}.",
        ),
        "-": (
            "{He} loses {n}.",
            "{He} gives {n} to {other}.",
            "{He} sells {n} {things}.",
            "Then {n} of them break.",
            "{other} takes {n} of them.",
            "{He} throws away {n}.",
        ),
        "*": (
            "Then {he} has {n} times as many.",
            "A trick makes them {n} times as many.",
            "{He} trades them for {n} times as many.",
        ),
        "/": (
            "{He} puts them into {n} equal bags and keeps one bag.",
            "{He} shares them equally with others, so each of {n} people has the same.",
        ),
    },
    questions=(
        "How many {things} does {name} have now?",
        "How many {things} does {he} have at the end?",
        "How many are left with {name}?",
    ),
)
CONTAINER = Story(
    openings=(
        "There are {n} {things} in a box.",
        "A shop has {n} {things}.",
        "A table holds {n} {things}.",
        "A bag is filled with {n} {things}.",
    ),
    sentences={
        "+": (
            "{name} adds {n}.",
            "{name} puts in {n} more.",
            "Then {n} more {things} arrive.",
            "Later {name} brings {n} {things}.",
        ),
        "-": (
            "{name} removes {n}.",
            "{name} takes out {n} {things}.",
            "Then {n} {things} are sold.",
            "Later {n} of them are lost.",
        ),
        "*": (
            "The number becomes {n} times as large.",
            "Then there are {n} times as many.",
        ),
        "/": (
            "{name} makes {n} equal parts and leaves only one part.",
            "They are split into {n} equal groups and one group stays.",
        ),
    },
    questions=(
        "How many {things} are there now?",
        "How many {things} are there at the end?",
        "How many {things} remain?",
    ),
)
STORIES = (PERSON, CONTAINER)
_ANSWER = re.compile(r"\s*[:=]?\s*(-?(?:0|[1-9][0-9]*))(?![A-Za-z0-9_%]|\s*[-+*/=^]|[.,:][0-9])")


def operand(rng: random.Random, symbol: str, x: int) -> int | None:
    """A second number for which `x symbol number` stays a whole number in 0..99, or None."""
    if symbol == "+":
        choices = range(2, 100 - x)
    elif symbol == "-":
        choices = range(2, x + 1)
    elif symbol == "*":
        choices = range(2, min(9, 99 // x) + 1) if x else range(0)
    else:
        return rng.choice(exact) if (exact := [d for d in range(2, 10) if x and x % d == 0]) else None
    return rng.choice(choices) if choices else None


def apply(x: int, symbol: str, y: int) -> int:
    """`x symbol y` on whole numbers."""
    return {"+": x + y, "-": x - y, "*": x * y, "/": x // y if y else 0}[symbol]


class Arithmetic(Generator):
    name = "arithmetic"
    summary = "word problems of one to three operations on numbers up to 99, answered in steps"
    words = words_of(
        "answer he him she her He She",
        *THINGS,
        *PEOPLE,
        *(text for s in STORIES for text in (*s.openings, *s.questions)),
        *(text for s in STORIES for group in s.sentences.values() for text in group),
    )

    def draw(self, rng: random.Random) -> Draw:
        story = rng.choice(STORIES)
        count = rng.choice((1, 2, 2, 3))
        start = x = rng.randint(2, 49) if count > 1 or rng.random() < 0.5 else rng.randint(2, 99)
        picks = [rng.choice(story.openings)]
        operands, symbols = [start], ""
        steps: list[str] = []
        while len(steps) < count:
            symbol = rng.choice("++--*/")
            if (symbol in symbols and rng.random() < 0.5) or (y := operand(rng, symbol, x)) is None:
                continue
            symbols += symbol
            result = apply(x, symbol, y)
            steps.append(f"{x} {symbol} {y} = {result}")
            picks.append(rng.choice(story.sentences[symbol]))
            operands.append(y)
            x = result
        picks.append(rng.choice(story.questions))
        name, other = rng.sample(tuple(PEOPLE), 2)
        he, him = PEOPLE[name]
        slots = {"name": name, "other": other, "he": he, "He": he.title(), "him": him, "things": rng.choice(THINGS)}
        text = " ".join(
            template.format(n=number, **slots) for template, number in zip(picks, [*operands, None], strict=True)
        )
        key = "|".join([*picks, *map(str, operands)])
        return Draw(key, text, f"{'; '.join(steps)}; answer {x}")

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if the whole number after the last `answer` is the right one, else 0.0."""
        words = list(re.finditer(r"\banswer\b", text, re.IGNORECASE))
        match = _ANSWER.match(text, words[-1].end()) if words else None
        return float(match is not None and match[1] == problem.answer.rsplit(" ", 1)[1])
