"""Chains: each line follows from the one before, every wording is accepted, and all lengths share one split."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pardec.tasks import Problem, task
from pardec.tasks.chains import LINE_TOKENS, WORDINGS, Chains

TOKENIZER = Path(__file__).resolve().parents[3] / "models" / "embedded" / "tokenizer" / "tokenizer.json"
NAMES = {"chains-64": (2, 4), "chains-128": (5, 8), "chains": (6, 14)}
PROBLEM = Problem(
    "p",
    "Anna starts with 42 cups. Ben adds 7. Leo sells 3. How many remain?",
    "Ben gets from Anna: 42 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 46",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


@pytest.mark.parametrize(("name", "steps"), NAMES.items())
def test_each_line_follows_from_the_prompt_and_the_line_before(name: str, steps: tuple[int, int]) -> None:
    counts = set()
    for problem in task(name).problems("train", 300, 1):
        prompt, answer = str(problem.prompt), str(problem.answer)
        opening, *sentences, _ = prompt.split(". ")
        holder, x = opening.split()[0], int(re.findall("[0-9]+", opening)[0])
        *lines, last = re.split(r"(?<=\.) ", answer)
        assert len(lines) == len(sentences)
        for sentence, line in zip(sentences, lines, strict=True):
            name_, y = sentence.split()[0], int(re.findall("[0-9]+", sentence)[0])
            gains = any(verb in sentence for verb in ("adds", "finds", "buys"))
            result = x + y if gains else x - y
            assert 10 <= result <= 99
            assert line.endswith(f": {x} {'+' if gains else '-'} {y} = {result}.")
            assert re.findall("[A-Z][a-z]+", line) == [name_, holder]
            holder, x = name_, result
        assert last == f"answer {x}"
        counts.add(len(lines))
    assert counts == set(range(steps[0], steps[1] + 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_line_has_the_same_length_in_every_wording_and_an_answer_fits(name: str, tokenizer: Tokenizer) -> None:
    made = task(name)
    for problem in made.problems("heldout", 200, 1):
        count = len(tokenizer.encode(str(problem.answer), add_special_tokens=False).ids)
        assert count == LINE_TOKENS * str(problem.answer).count("=") + 3
        assert count < made.tokens


def test_a_problem_is_in_the_same_split_at_every_length() -> None:
    short, long = Chains("chains-64", 2, 8, 64), Chains()
    assert {short.split_of(f"{key}") for key in range(50)} == {"train", "heldout"}
    assert all(short.split_of(f"{key}") == long.split_of(f"{key}") for key in range(50))


def test_the_likeliest_words_of_each_place_make_no_wording() -> None:
    weights: list[dict[str, float]] = [{} for _ in range(4)]
    for wording, share in WORDINGS.items():
        for place, word in zip(weights, wording.split(), strict=True):
            place[word] = place.get(word, 0.0) + share
    assert " ".join(max(place, key=place.__getitem__) for place in weights) not in WORDINGS


@pytest.mark.parametrize(
    ("text", "exact", "lenient"),
    [
        (PROBLEM.answer, 1.0, 1.0),
        ("Ben works with Anna: 42 + 7 = 49. Leo gets from Ben: 49 - 3 = 46. answer 46", 1.0, 1.0),
        (" Ben works for Anna: 42 + 7 = 49.\nLeo works for Ben: 49 - 3 = 46. answer 46 ", 1.0, 1.0),
        ("Ben works from Anna: 42 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 46", 0.0, 1.0),
        ("Ben gets from Anna: 42 + 7 = 48. Leo works for Ben: 49 - 3 = 46. answer 46", 0.0, 1.0),
        ("Ben gets from Anna: 41 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 46", 0.0, 1.0),
        ("Anna gets from Ben: 42 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 46", 0.0, 1.0),
        ("Ben gets from Anna: 42 + 7 = 49. answer 46", 0.0, 1.0),
        ("Ben gets from Anna: 42 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 47", 0.0, 0.0),
        ("Ben gets from Anna: 42 + 7 = 49. Leo works for Ben: 49 - 3 = 46. answer 46 46", 0.0, 1.0),
        ("answer 46", 0.0, 1.0),
        ("", 0.0, 0.0),
    ],
)
def test_every_wording_is_right_and_every_slip_is_wrong(text: str, exact: float, lenient: float) -> None:
    assert task("chains").score(PROBLEM, text) == exact
    assert task("chains").lenient(PROBLEM, text) == lenient


def test_impossible_numbers_of_steps_are_refused() -> None:
    for fewest, most in ((0, 3), (5, 4), (3, 16)):
        with pytest.raises(ValueError, match=r"steps must lie in 1\.\.15"):
            Chains("x", fewest, most)
    assert Chains("x", 15, 15).draw(random.Random(0)).prompt.count(".") == 16
