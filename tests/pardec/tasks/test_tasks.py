"""Tasks: disjoint splits for all seeds, repeatable draws, right answers, exact scores."""

from __future__ import annotations

import json
import operator
import random
import re

import pytest

from pardec.tasks import Problem, list_tasks, task
from pardec.tasks.arithmetic import STORIES
from pardec.tasks.base import LIMIT, Draw, Generator

NAMES = [name for name in list_tasks() if task(name).answers == "text"]


@pytest.mark.parametrize("name", NAMES)
def test_no_problem_is_in_both_splits_whatever_the_seed(name: str) -> None:
    seen: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for split, texts in seen.items():
        for seed in range(2):
            texts.update(p.prompt for p in task(name).problems(split, 15, seed))
    assert not seen["train"] & seen["heldout"]


@pytest.mark.parametrize("name", NAMES)
def test_a_draw_belongs_to_one_split_and_a_tenth_is_held_out(name: str) -> None:
    made, rng = task(name), random.Random(0)
    assert isinstance(made, Generator)
    splits: dict[str, set[str]] = {}
    for _ in range(700):
        render = made.draw(rng)
        splits.setdefault(render.prompt, set()).add(made.split_of(render.key))
    assert all(len(found) == 1 for found in splits.values())
    assert 0.06 < sum(found == {"heldout"} for found in splits.values()) / len(splits) < 0.14


@pytest.mark.parametrize("name", NAMES)
def test_problems_are_distinct_and_repeatable(name: str) -> None:
    first = task(name).problems("heldout", 25, 3)
    assert first[:20] == task(name).problems("heldout", 20, 3)
    assert first[:20] != task(name).problems("heldout", 20, 4)
    assert len({p.prompt for p in first}) == len({p.id for p in first}) == 25


def test_a_problem_does_not_change_between_versions() -> None:
    assert task("lists").problems("heldout", 1, 7)[0] == Problem(
        "lists-ccdbc9a367cec32f", "Write the list in order: 6 1 5 1 9.", "1 1 5 6 9"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_itself_scores_one_and_another_answer_zero(name: str) -> None:
    problems = task(name).problems("heldout", 25, 0)
    for problem in problems:
        assert task(name).score(problem, problem.answer) == 1.0
        assert task(name).score(problem, "") == 0.0
        other = next(p for p in problems if p.answer.split()[-1] != problem.answer.split()[-1])
        assert task(name).score(problem, other.answer) == 0.0


def test_arithmetic_answers_are_right_and_stay_in_range() -> None:
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    lengths = set()
    for split in ("train", "heldout"):
        for problem in task("arithmetic").problems(split, 1000, 1):
            *steps, last = problem.answer.split("; ")
            value = None
            numbers = [int(n) for n in re.findall(r"\d+", problem.prompt)]
            assert len(numbers) == len(steps) + 1
            for i, step in enumerate(steps):
                x, symbol, y, equals, result = step.split()
                assert equals == "="
                assert int(result) == apply[symbol](int(x), int(y))
                assert value is None or int(x) == value
                assert numbers[i + 1] == int(y)
                assert i or numbers[0] == int(x)
                value = int(result)
                assert all(0 <= int(n) <= 99 for n in (x, y, result))
            assert last == f"answer {value}"
            assert problem.prompt.endswith("?")
            lengths.add(len(steps))
    assert lengths == {1, 2, 3}


def test_arithmetic_has_enough_templates() -> None:
    assert sum(len(group) for context in STORIES for group in context.sentences.values()) >= 24


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("answer 57", 1.0),
        ("12 + 45 = 57; answer 57.", 1.0),
        ("answer 12 ... no, answer 57 in all", 1.0),
        ("Answer: 57", 1.0),
        ("answer 57; answer 58", 0.0),
        ("answer 570", 0.0),
        ("answer 57.5", 0.0),
        ("answer 57 + 1", 0.0),
        ("answer 057", 0.0),
        ("answer -57", 0.0),
        ("answer57x", 0.0),
        ("57", 0.0),
        ("answer", 0.0),
        ("answer 57, then answer", 0.0),
    ],
)
def test_arithmetic_scores_the_whole_number_after_the_last_answer(text: str, right: float) -> None:
    assert task("arithmetic").score(Problem("p", "?", "12 + 45 = 57; answer 57"), text) == right


def test_lists_answers_are_right() -> None:
    seen = set()
    for problem in task("lists").problems("train", 2000, 1):
        head, tail = problem.prompt.rstrip(".?").split(": ")
        items, answer = tail.split(), problem.answer.split()
        assert 3 <= len(items) <= 8
        first = head.split()[0]
        if first in ("Copy", "Repeat") or head.endswith("again"):
            assert answer == items
            seen.add("copy")
        elif first in ("Reverse", "Turn") or head.endswith("backwards"):
            assert answer == list(reversed(items))
            seen.add("reverse")
        elif first in ("Sort", "Put") or head.endswith("order"):
            assert answer == sorted(items)
            seen.add("sort")
        elif first in ("Count", "How"):
            asked = re.search(r"Count (\w+)|is (\w+) in|have (\w+)$", head)
            assert asked
            assert answer == [str(items.count(next(g for g in asked.groups() if g)))]
            seen.add("count")
        else:
            given = re.search(r"(?:Replace|Change each) (\w+) (?:with|to) (\w+)", head)
            swapped = re.search(r"with (\w+) for (\w+)$", head)
            assert given or swapped
            a, b = given.groups() if given else (swapped[2], swapped[1])  # type: ignore[index]
            assert answer == [b if item == a else item for item in items]
            assert a in items
            seen.add("replace")
    assert seen == {"copy", "reverse", "sort", "count", "replace"}


def test_lists_score_ignores_white_space_only() -> None:
    problem = Problem("p", "Copy the list: 4 7 2.", "4 7 2")
    assert [task("lists").score(problem, t) for t in (" 4  7\n2 ", "4 7", "472", "4 7 2 2")] == [1, 0, 0, 0]


def test_records_hold_what_the_sentence_says_in_fixed_order() -> None:
    shapes = set()
    for problem in task("records").problems("train", 1000, 1):
        record = json.loads(problem.answer)
        assert list(record) == [f for f in ("name", "age", "city", "job") if f in record]
        assert len(record) >= 2
        words = re.findall(r"\w+", problem.prompt)
        assert all(str(value) in words for value in record.values())
        shapes.add(tuple(record))
    assert len(shapes) >= 6


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"age": 34, "name": "Anna"}', 1.0),
        ('Here: {"name":"Anna","age":34} done {', 1.0),
        ('{"name": "Anna", "age": "34"}', 0.0),
        ('{"name": "Anna", "age": 34.0}', 0.0),
        ('{"name": "Anna"}', 0.0),
        ('{"name": "Tom", "name": "Anna", "age": 34}', 0.0),
        ('{"name": "Anna", "age": 34', 0.0),
        ("name Anna", 0.0),
        ("{" * 100_000, 0.0),
        ('{"a": ' * 100_000, 0.0),
    ],
)
def test_records_score_is_equality_of_the_first_record(text: str, right: float) -> None:
    assert task("records").score(Problem("p", "", '{"name": "Anna", "age": 34}'), text) == right


def test_unknown_names_and_impossible_counts_say_what_would_work() -> None:
    with pytest.raises(ValueError, match=r"unknown task 'arithmetc' \(did you mean 'arithmetic'\?\)"):
        task("arithmetc")
    with pytest.raises(ValueError, match=r"unknown split 'heldut' \(did you mean 'heldout'\?\)"):
        task("lists").problems("heldut")
    for n in (0, -1, LIMIT + 1, 10**12):
        with pytest.raises(ValueError, match="n must lie in"):
            task("lists").problems(n=n)


class Few(Generator):
    """A task with ten problems."""

    name = "few"

    def draw(self, rng: random.Random) -> Draw:
        text = str(rng.randrange(10))
        return Draw(text, text, text)

    def score(self, problem: Problem, text: str) -> float:
        return float(text == problem.answer)


def test_asking_for_more_than_exists_says_how_many_there_are() -> None:
    held = sum(Few().split_of(str(i)) == "heldout" for i in range(10))
    assert len(Few().problems("train", 10 - held)) == 10 - held
    with pytest.raises(ValueError, match=f"train has only {10 - held} problems, got n=20"):
        Few().problems("train", 20)
