"""Stories: texts of the grammar are right, texts whose words disagree are wrong, and a judge rates right ones."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import pardec
from pardec.models.errors import SpecError
from pardec.tasks import Problem, task
from pardec.tasks.judges import ModelJudge
from pardec.tasks.stories import BEFORE, EVENTS, INTRODUCTIONS, Stories, notes_of

NAMES = ("stories", "stories-128", "stories-256")
PROBLEM = Problem("p", "Write of Anna, a baker in Rome: + 4 cups - 7 coins.", "")
TOKENIZER = Path(__file__).resolve().parents[3] / "models" / "embedded" / "tokenizer" / "tokenizer.json"


@pytest.mark.parametrize(
    ("text", "exact", "lenient"),
    [
        ("Anna is a baker in Rome. She buys 4 cups. A friend takes 7 coins from her.", 1.0, 1.0),
        ("There is a baker in Rome called Anna. Then a friend gives her 4 cups.\nShe loses 7 coins. ", 1.0, 1.0),
        ("Anna is a baker in Rome. She buys 4 cups. She sells 7 coins.", 0.0, 1.0),  # two begin alike
        ("Anna is a baker in Rome. She buys 4 cups. A friend takes 7 coins from him.", 0.0, 0.0),
        ("Anna is a baker in Rome. She brings 4 cups. A friend takes 7 coins from her.", 0.0, 0.0),
        ("Anna is a baker in Rome. She buys 7 cups. A friend takes 4 coins from her.", 0.0, 0.0),
        ("Anna is a baker in Rome. A friend takes 7 coins from her. She buys 4 cups.", 0.0, 0.0),
        ("Anna works as a baker called Rome. She buys 4 cups. Then she loses 7 coins.", 0.0, 0.0),
        ("Anna is a baker in Rome. She buys 4 cups.", 0.0, 0.0),
        ("Anna is a baker in Rome. She buys 4 cups. Then she loses 7 coins. Then", 0.0, 0.0),
        ("Anna is a baker in Rome. She buys 4 cups. Then she loses 7 coins", 0.0, 0.0),
        ("Anna is a baker in Rome. she buys 4 cups. Then she loses 7 coins.", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_exactly_the_stories_of_the_grammar_are_right(text: str, exact: float, lenient: float) -> None:
    assert task("stories").score(PROBLEM, text) == exact
    assert task("stories").lenient(PROBLEM, text) == lenient


@pytest.mark.parametrize("name", NAMES)
def test_the_given_stories_are_right_fit_and_begin_neighbours_differently(name: str) -> None:
    made, tokenizer = task(name), Tokenizer.from_file(str(TOKENIZER))
    for problem in made.problems("train", 100, 1):
        story = str(problem.answer)
        assert made.score(problem, story) == 1.0
        begins = [sentence.split(" ", 1)[0] for sentence in story.split(". ")]
        assert all(a != b for a, b in pairwise(begins))
        assert len(tokenizer.encode(story, add_special_tokens=False).ids) < made.tokens


def test_every_wording_is_used() -> None:
    used: Counter[str] = Counter()
    for problem in task("stories").problems("train", 1000, 1):
        notes = notes_of(problem.prompt)
        story = [f"{one}." for one in str(problem.answer).removesuffix(".").split(". ")]
        used.update(
            f"{event[0]}{wordings.index(one)}"
            for one, wordings, event in zip(story, notes.sentences(), ("i", *notes.events), strict=True)
        )
    assert len(used) == len(INTRODUCTIONS) + len(BEFORE) * sum(map(len, EVENTS.values()))


def test_who_it_is_about_does_not_decide_the_split() -> None:
    made = Stories()
    for problem in made.problems("heldout", 50, 1):
        other = str(problem.prompt).replace(notes_of(problem.prompt).name, "Olga", 1)
        assert made.split_of(other.split(",", 1)[1]) == Stories("stories-128").split_of(other.split(",", 1)[1])
        assert made.split_of(other.split(",", 1)[1]) == "heldout"


@pytest.mark.parametrize("prompt", ["", "Write of Zoe, a baker in Rome: + 4 cups.", "Write of Anna, a baker in Rome:."])
def test_other_prompts_and_numbers_of_events_are_refused(prompt: str) -> None:
    with pytest.raises(SpecError, match="is not a prompt of stories"):
        task("stories").score(Problem("p", prompt, ""), "Anna is a baker in Rome.")
    with pytest.raises(ValueError, match=r"events must lie in 1\.\."):
        Stories("x", 5, 4)


def test_a_judge_rates_right_stories_alone() -> None:
    judged = Stories().judged_by(lambda prompt, text: float(len(text)))
    right = "Anna is a baker in Rome. She buys 4 cups. Then she loses 7 coins."
    assert judged.seen(PROBLEM, right) == {"judge_nats": float(len(right))}
    assert judged.seen(PROBLEM, right[:-1]) == {}
    assert task("stories").seen(PROBLEM, right) == {}


def test_a_causal_model_judges_by_the_likelihood_of_the_answer() -> None:
    judge = ModelJudge(pardec.load("tiny-llama", device="cpu"))
    prompt, right = "Reverse the list: 4 7 2 9 1.", "1 9 2 7 4"
    assert 0 < judge(prompt, right) < 0.1
    assert judge(prompt, "1 9 2 4 7") > 1
    with pytest.raises(SpecError, match="tiny-dream cannot judge"):
        ModelJudge(pardec.load("tiny-dream", device="cpu"))
