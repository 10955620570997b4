"""Latin squares with missing numbers, which can be filled in any order and mostly depend on each other.

    Fill in the table: 1 0 3 0 / 0 4 0 2 / 0 1 0 3 / 4 0 2 0.
    1 2 3 4 / 3 4 1 2 / 2 1 4 3 / 4 3 2 1

A zero is a missing number. Each row and each column is to have every number once; where several squares fit, each is
right. The numbers that are shown decide the split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from pardec.models.errors import SpecError

from .base import Draw, Generator, Problem, words_of

_GRID = re.compile(r"[0-9](?: [0-9])*(?: / [0-9](?: [0-9])*)*")

Grid = Sequence[Sequence[int]]


def format_grid(grid: Grid) -> str:
    """The rows on one line.

    >>> format_grid([[1, 2], [2, 1]])
    '1 2 / 2 1'
    """
    return " / ".join(" ".join(map(str, row)) for row in grid)


def read(text: str) -> Grid | None:
    """Parses a text as a grid; None if it is not one.

    >>> read("1 2 / 2 1"), read("1 2 3")
    ([[1, 2], [2, 1]], None)
    """
    if not _GRID.fullmatch(text):
        return None
    grid = [[int(number) for number in row.split()] for row in text.split("/")]
    return grid if all(len(row) == len(grid) for row in grid) else None


def is_latin(grid: Grid) -> bool:
    """Whether each row and each column has every number from 1 to the number of rows once."""
    digits = set(range(1, len(grid) + 1))
    return all(set(line) == digits for line in (*grid, *zip(*grid, strict=True)))


def square(rng: random.Random, size: int) -> list[list[int]]:
    """A Latin square: one built row by row, each from the numbers that its columns still lack."""
    while True:
        rows: list[list[int]] = []
        while len(rows) < size and (row := _row(rng, rows, size)):
            rows.append(row)
        if len(rows) == size:
            return rows


def _row(rng: random.Random, above: list[list[int]], size: int) -> list[int]:
    """A random row that repeats nothing above it; empty if a try with the scarcest column first meets a dead end."""
    free = [set(range(1, size + 1)) - {row[column] for row in above} for column in range(size)]
    row = [0] * size
    while 0 in row:
        column = min((c for c in range(size) if not row[c]), key=lambda c: (len(free[c]), rng.random()))
        if not free[column]:
            return []
        row[column] = rng.choice(sorted(free[column]))
        free = [left - {row[column]} for left in free]
    return row


class Grids(Generator):
    """Latin squares of `size` rows of which `fewest` to `most` numbers are missing."""

    words: ClassVar[frozenset[str]] = words_of("Fill in the table:")

    def __init__(self, name: str = "grids", size: int = 4, fewest: int = 6, most: int = 12, tokens: int = 64) -> None:
        if not 2 <= size <= 9 or not 1 <= fewest <= most <= size * size:
            raise ValueError(f"grids: size must lie in 2..9 and fit what is missing, got {size}, {fewest} to {most}")
        self.name, self.size, self.fewest, self.most, self.tokens = name, size, fewest, most, tokens
        self.summary = f"Latin squares of {size} rows with {fewest} to {most} numbers missing"

    def draw(self, rng: random.Random) -> Draw:
        full = square(rng, self.size)
        missing = set(rng.sample(range(self.size**2), rng.randint(self.fewest, self.most)))
        shown = [
            [0 if row * self.size + column in missing else number for column, number in enumerate(line)]
            for row, line in enumerate(full)
        ]
        return Draw(format_grid(shown), f"Fill in the table: {format_grid(shown)}.", format_grid(full))

    def score(self, problem: Problem, text: str) -> float:
        """1.0 if text is a Latin square that holds the numbers shown, else 0.0."""
        shown = read(str(problem.prompt).rpartition(": ")[2].rstrip("."))
        if shown is None:
            raise SpecError(
                f"{problem.prompt!r} is not a prompt of {self.name}", hint='task("grids").problems() makes them'
            )
        full = read(" ".join(text.split()))
        if full is None or len(full) != len(shown) or not is_latin(full):
            return 0.0
        rows = zip(shown, full, strict=True)
        return float(all(a in (0, b) for some, every in rows for a, b in zip(some, every, strict=True)))
