"""Copy, reverse, sort, replace, count: answers whose tokens depend on each other.

`Reverse the list: 4 7 2 9.` is answered `9 2 7 4`. Operation, its arguments and the items decide the split; the
phrasing does not.
"""

from __future__ import annotations

import random

from .base import Draw, Generator, Problem, words_of

DIGITS = tuple("0123456789")
ANIMALS = ("ant", "bee", "cat", "cow", "dog", "fox", "hen", "owl", "pig", "rat")

# operation -> phrasings; slots: items, and a, b for the operations that take arguments
PHRASINGS: dict[str, tuple[str, ...]] = {
    "copy": ("Copy the list: {items}.", "Repeat this list: {items}.", "Write the list again: {items}."),
    "reverse": ("Reverse the list: {items}.", "Write this list backwards: {items}.", "Turn the list around: {items}."),
    "sort": ("Sort the list: {items}.", "Put this list in order: {items}.", "Write the list in order: {items}."),
    "replace": (
        "Replace {a} with {b} in the list: {items}.",
        "Change each {a} to {b} in this list: {items}.",
        "Write the list with {b} for {a}: {items}.",
    ),
    "count": (
        "Count {a} in the list: {items}.",
        "How many times is {a} in this list: {items}?",
        "How often does the list have {a}: {items}?",
    ),
}


def solve(operation: str, items: list[str], a: str, b: str) -> list[str]:
    """The items of the answer."""
    if operation == "reverse":
        return items[::-1]
    if operation == "sort":
        return sorted(items)
    if operation == "replace":
        return [b if item == a else item for item in items]
    if operation == "count":
        return [str(items.count(a))]
    return list(items)


class Lists(Generator):
    name = "lists"
    summary = "copy, reverse, sort, replace or count over three to eight items"
    words = words_of(*ANIMALS, *(text for group in PHRASINGS.values() for text in group))

    def draw(self, rng: random.Random) -> Draw:
        operation = rng.choice(tuple(PHRASINGS))
        alphabet = DIGITS if rng.random() < 0.6 else ANIMALS
        length = rng.randint(3, 8)
        if operation in ("replace", "count"):  # a few kinds, so that the asked one occurs again
            alphabet = tuple(rng.sample(alphabet, rng.randint(2, 5)))
        items = rng.choices(alphabet, k=length)
        a = b = ""
        if operation == "count":
            a = rng.choice(alphabet)
        elif operation == "replace":
            a = rng.choice(items)
            b = rng.choice([item for item in (DIGITS if a in DIGITS else ANIMALS) if item != a])
        prompt = rng.choice(PHRASINGS[operation]).format(items=" ".join(items), a=a, b=b)
        key = "|".join([operation, a, b, *items])
        return Draw(key, prompt, " ".join(solve(operation, items, a, b)))

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if text is the answer, any white space counting as one space, else 0.0."""
        return float(text.split() == problem.answer.split())
