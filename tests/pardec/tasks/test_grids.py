"""Grids: they are Latin squares, given numbers stay, and any square that fits is right."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pardec.models.errors import SpecError
from pardec.tasks import Problem, task
from pardec.tasks.grids import Grids, is_latin, read, square

TOKENIZER = Path(__file__).resolve().parents[3] / "models" / "embedded" / "tokenizer" / "tokenizer.json"
PROBLEM = Problem("p", "Fill in the table: 1 0 / 0 0.", "1 2 / 2 1")
FREE = Problem("p", "Fill in the table: 0 0 / 0 0.", "1 2 / 2 1")


@pytest.mark.parametrize(("name", "size", "missing"), [("grids", 4, (6, 12)), ("grids-128", 8, (10, 24))])
def test_answers_are_latin_squares_that_hold_what_is_shown(name: str, size: int, missing: tuple[int, int]) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    counts = set()
    for problem in task(name).problems("train", 200, 1):
        shown, full = read(str(problem.prompt)[len("Fill in the table: ") : -1]), read(str(problem.answer))
        assert len(full) == size
        assert is_latin(full)
        numbers = [(a, b) for some, every in zip(shown, full, strict=True) for a, b in zip(some, every, strict=True)]
        assert all(a in (0, b) for a, b in numbers)
        counts.add(sum(a == 0 for a, _ in numbers))
        assert len(tokenizer.encode(str(problem.answer), add_special_tokens=False).ids) < task(name).tokens
    assert (min(counts), max(counts)) == missing


def test_every_small_square_occurs_about_as_often() -> None:
    rng = random.Random(0)
    counts = Counter(str(square(rng, 3)) for _ in range(2400))
    assert len(counts) == 12
    assert all(140 < count < 260 for count in counts.values())


@pytest.mark.parametrize(
    ("problem", "text", "right"),
    [
        (PROBLEM, "1 2 / 2 1", 1.0),
        (PROBLEM, " 1 2 /\n2 1 ", 1.0),
        (PROBLEM, "2 1 / 1 2", 0.0),
        (FREE, "2 1 / 1 2", 1.0),
        (FREE, "1 2 / 1 2", 0.0),
        (FREE, "1 2 / 2 3", 0.0),
        (FREE, "1 2 / 2 0", 0.0),
        (FREE, "1 2 3 / 2 3 1 / 3 1 2", 0.0),
        (FREE, "1 2 / 2 1 / 1 2", 0.0),
        (FREE, "1 2 / 2 1 .", 0.0),
        (FREE, "12 / 21", 0.0),
        (FREE, "", 0.0),
    ],
)
def test_any_square_that_fits_is_right(problem: Problem, text: str, right: float) -> None:
    assert Grids("x", 2, 1, 4).score(problem, text) == right


def test_other_prompts_and_impossible_sizes_are_refused() -> None:
    with pytest.raises(SpecError, match="is not a prompt of grids"):
        task("grids").score(Problem("p", "Sort the list.", ""), "1 2 / 2 1")
    for size, most in ((1, 1), (10, 5), (4, 17)):
        with pytest.raises(ValueError, match="size must lie in"):
            Grids("x", size, 1, most)
