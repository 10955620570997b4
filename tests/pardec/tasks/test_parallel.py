"""The waiting-line tasks: the prompts, the right answers by an independent reading, and what each score tolerates."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pardec.models.errors import SpecError
from pardec.tasks import GROUPS, Problem, expand, task
from pardec.tasks.parallel import LONGEST, NAMES, SHORTEST, Query, WaitingLine, formatted, leniently, strictly
from tests.samplers.heldout_answers import answered

FIVE = expand("parallel")


def line_of(prompt: str) -> list[str]:
    """The list in the prompt, parsed as JSON."""
    found = json.loads(prompt[prompt.index("[") : prompt.rindex("]") + 1])
    assert isinstance(found, list)
    return found


def is_right(name: str, prompt: str, answer: list[str]) -> bool:
    """Whether the answer does what the prompt asks for, derived from the prompt's words alone."""
    head, items = prompt[: prompt.index("[")], line_of(prompt)
    item, number = re.search(r'"(\w+)"', head), re.search(r"number (\d+)", head)
    at = int(number[1]) - 1 if number else None
    if name == "sort":
        return Counter(answer) == Counter(items) and all(a <= b for a, b in pairwise(answer))
    if name == "shuffle":
        return Counter(answer) == Counter(items) and answer != items
    if name == "remove":
        if at is not None:
            del items[at]
            return answer == items
        return len(answer) == len(items) - 1 and answer == [i for i in items if i in answer]
    assert item
    if name == "insert":
        if at is not None and (len(answer) <= at or answer[at] != item[1]):
            return False
        return answer.count(item[1]) == 1 and [i for i in answer if i != item[1]] == items
    if len(answer) != len(items):
        return False
    changed = [i for i, (old, new) in enumerate(zip(items, answer, strict=True)) if old != new]
    return len(changed) == 1 and answer[changed[0]] == item[1] and (at is None or changed == [at])


def test_the_group_has_the_five() -> None:
    assert tuple(FIVE) == GROUPS["parallel"] == ("insert", "remove", "shuffle", "replace", "sort")
    assert expand("sort") == ["sort"]


@pytest.mark.parametrize("name", FIVE)
def test_every_answer_is_right_by_an_independent_reading(name: str) -> None:
    made = task(name)
    lengths, free = set(), Counter[bool]()
    for problem in made.problems("train", 600, 3) + made.problems("heldout", 200, 3):
        prompt = str(problem.prompt)
        items = line_of(prompt)
        assert is_right(name, prompt, json.loads(problem.answer))
        assert made.score(problem, problem.answer) == made.lenient(problem, problem.answer) == 1.0
        assert len(set(items)) == len(items)
        assert prompt.endswith("]. Write only the list.")
        lengths.add(len(items))
        free["number" not in prompt] += 1
    assert lengths == set(range(SHORTEST, LONGEST + 1))
    assert bool(free[False]) == (name in ("insert", "remove", "replace"))
    assert free[True] > 200


@pytest.mark.parametrize("name", FIVE)
@given(data=st.data())
def test_the_score_agrees_with_the_reading_on_lines_near_the_right_one(name: str, data: st.DataObject) -> None:
    made = task(name)
    problem = made.problems("train", 40, 11)[data.draw(st.integers(0, 39))]
    prompt, answer = str(problem.prompt), json.loads(problem.answer)
    base = data.draw(st.sampled_from([answer, line_of(prompt), sorted(answer)]))
    edit = data.draw(st.sampled_from(["keep", "permute", "drop", "add", "change"]))
    at = data.draw(st.integers(0, len(base) - 1))
    other = data.draw(st.sampled_from([*NAMES, *re.findall(r'"(\w+)"', prompt)]))
    tried = list(base)
    if edit == "permute":
        tried = data.draw(st.permutations(base))
    elif edit == "drop":
        del tried[at]
    elif edit == "add":
        tried.insert(at, other)
    elif edit == "change":
        tried[at] = other
    right = float(is_right(name, prompt, tried))
    assert made.score(problem, formatted(tried)) == right
    loose = ", ".join(tried)
    assert made.score(problem, loose) == 0.0
    same = name == "shuffle" and tried == line_of(prompt)
    assert made.lenient(problem, loose) == made.lenient(problem, formatted(tried)) == (1.0 if same else right)


@pytest.mark.parametrize("name", FIVE)
def test_a_problem_is_a_function_of_its_prompt(name: str) -> None:
    seen: dict[str, Problem] = {}
    for seed in range(10):
        for problem in task(name).problems("train", 400, seed):
            assert seen.setdefault(problem.id, problem) == problem
    assert len(seen) == len({problem.prompt for problem in seen.values()})
    assert len(seen) < 10 * 400  # some came twice


def test_problems_do_not_change_between_versions() -> None:
    assert task("insert").problems("heldout", 2, 7)[1] == Problem(
        "insert-d1d02f56dc405bb8",
        'Put "Leo" into the list as number 1: ["Sara", "Tom", "Lena", "Ravi", "Max", "Olga"]. Write only the list.',
        '["Leo", "Sara", "Tom", "Lena", "Ravi", "Max", "Olga"]',
    )


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ('["Anna", "Leo", "Tom"]', 1, 1),
        ('  ["Anna", "Leo", "Tom"]\n', 1, 1),
        ('Here it is: ["Anna", "Leo", "Tom"]. Done.', 1, 1),
        ('["Tom"] no, ["Anna", "Leo", "Tom"]', 1, 1),
        ('["Anna", "Leo", "Tom"] or ["Tom"]', 0, 0),
        ('["Anna","Leo","Tom"]', 0, 1),
        ('["Anna", "Leo", "Tom",]', 0, 1),
        ('[ "Anna" , "Leo", "Tom" ]', 0, 1),
        ('["Anna", "Leo", "Tom"', 0, 1),
        ('"Anna", "Leo", "Tom"]', 0, 1),
        ("[Anna, Leo, Tom]", 0, 1),
        ("Anna, Leo, Tom", 0, 1),
        ('["Anna",\n"Leo",\n"Tom"]', 0, 1),
        ("Anna Leo Tom", 0, 0),
        ('["Anna" "Leo" "Tom"]', 0, 0),
        ('["Leo", "Anna", "Tom"]', 0, 0),
        ('["Anna", "Leo", "Leo", "Tom"]', 0, 0),
        ('["Anna", "Leo"]', 0, 0),
        ('["anna", "Leo", "Tom"]', 0, 0),
        ("[]", 0, 0),
        ("[", 0, 0),
        ("", 0, 0),
        ("[" * 100_000, 0, 0),
        ('["' + '", "' * 100_000, 0, 0),
    ],
)
def test_what_is_strict_and_what_is_forgiven(text: str, strict: float, lenient: float) -> None:
    problem = Problem("p", 'Put "Leo" into the list as number 2: ["Anna", "Tom"]. Write only the list.', "")
    assert task("insert").score(problem, text) == strict
    assert task("insert").lenient(problem, text) == lenient


@pytest.mark.parametrize(
    ("name", "prompt", "strict", "wrong"),
    [
        (
            "insert",
            'Put "Leo" into the list, the others in the same order: ["Anna", "Tom"].',
            ["Leo Anna Tom", "Anna Leo Tom", "Anna Tom Leo"],
            ["Anna Tom", "Tom Leo Anna", "Anna Leo Tom Leo", "Anna Ben Tom"],
        ),
        (
            "remove",
            'Write the list with one left out and the others in the same order: ["Anna", "Tom", "Ben"].',
            ["Tom Ben", "Anna Ben", "Anna Tom"],
            ["Ben Tom", "Anna", "Anna Tom Ben", "Anna Leo"],
        ),
        (
            "remove",
            'The one at number 3 leaves. Write the list of the others: ["Anna", "Tom", "Ben"].',
            ["Anna Tom"],
            ["Tom Ben", "Anna Ben"],
        ),
        (
            "replace",
            'Replace one in the list with "Leo": ["Anna", "Tom"].',
            ["Leo Tom", "Anna Leo"],
            ["Leo Leo", "Anna Tom", "Leo Anna", "Anna Tom Leo"],
        ),
        ("replace", 'Change number 1 of the list to "Leo": ["Anna", "Tom"].', ["Leo Tom"], ["Anna Leo"]),
        ("sort", 'Sort the list from A to Z: ["Tom", "Anna", "Ben"].', ["Anna Ben Tom"], ["Tom Ben Anna", "Anna Ben"]),
    ],
)
def test_hand_made_lines(name: str, prompt: str, strict: list[str], wrong: list[str]) -> None:
    problem = Problem("p", prompt + " Write only the list.", "")
    for lines, right in ((strict, 1.0), (wrong, 0.0)):
        for line in lines:
            assert task(name).score(problem, formatted(line.split())) == right, line
            assert task(name).lenient(problem, ", ".join(line.split())) == right, line


def test_shuffle_wants_another_order_and_the_lenient_score_any() -> None:
    problem = Problem("p", 'Shuffle the list: ["Anna", "Tom", "Ben"]. Write only the list.', "")
    lines = ("Tom Anna Ben", "Ben Tom Anna", "Anna Tom Ben", "Anna Tom Tom", "Anna Tom", "Anna Tom Ben Ben")
    assert [task("shuffle").score(problem, formatted(line.split())) for line in lines] == [1, 1, 0, 0, 0, 0]
    assert [task("shuffle").lenient(problem, formatted(line.split())) for line in lines] == [1, 1, 1, 0, 0, 0]


def test_a_prompt_of_another_task_is_refused() -> None:
    sort = task("sort").problems(n=1)[0]
    with pytest.raises(SpecError, match="is not a prompt of insert"):
        task("insert").score(sort, "")
    with pytest.raises(SpecError, match="is not a prompt of sort"):
        task("sort").score(Problem("p", [{"role": "user", "content": "x"}], ""), "")


def test_what_is_asked_is_read_back() -> None:
    made = task("replace")
    assert isinstance(made, WaitingLine)
    prompt = 'Change number 2 of the list to "Leo": ["Anna", "Tom"]. Write only the list.'
    assert made.query(prompt) == Query(("Anna", "Tom"), "Leo", 2)


ITEMS = st.text(alphabet=st.characters(exclude_characters='"[],')).map(str.strip).filter(bool)


@given(st.lists(ITEMS, min_size=1))
def test_the_asked_form_is_read_by_both(items: list[str]) -> None:
    assert strictly(formatted(items)) == tuple(items)
    assert leniently(formatted(items)) == tuple(items)


@given(st.text(alphabet='[]", \nAb'))
def test_what_is_read_strictly_is_what_was_written(text: str) -> None:
    found = strictly(text)
    if found is not None:
        assert text.rpartition("[")[2].startswith(formatted(found)[1:])


def test_lines_by_hand() -> None:
    lines_by_hand()


@pytest.mark.slow  # seconds for 60 answers; the tests above have the tasks and their scores
@pytest.mark.seeds("arXiv:2510.04767")
def test_an_order_that_tokens_agree_on_is_lost_in_parallel_and_one_that_is_given_is_not() -> None:
    """tiny-llada, 10 problems: any other order is right for `shuffle`, so that each place is uncertain alone."""
    lines_by_hand()
    shuffle = task("shuffle")
    for problem in shuffle.problems(split="heldout", n=3, seed=7):
        line = line_of(problem.prompt)
        orders = {order: shuffle.score(problem, formatted(order)) for order in permutations(line)}
        assert orders == {order: float(order != tuple(line)) for order in orders}
        assert shuffle.score(problem, formatted([line[0], *line[:-1]])) == 0, "an item twice"
    right = {
        name: [answered("tiny-llada", name, f"fixed:steps={steps}", 10)[0] for steps in (32, 8, 1)]
        for name in ("shuffle", "sort")
    }
    assert right["shuffle"][0] >= 9
    assert max(right["shuffle"][1:]) <= 3
    assert min(right["sort"]) >= 9


def lines_by_hand() -> None:
    """Where a number is named it counts from 1; the last list of a text counts, and its form."""
    given = '["Anna", "Tom"]'
    for name, prompt, right in (
        ("insert", f'Put "Leo" into the list as number 2: {given}.', ["Anna Leo Tom"]),
        ("insert", f'Put "Leo" into the list as number 3: {given}.', ["Anna Tom Leo"]),
        ("insert", f'Put "Leo" into the list, the others in the same order: {given}.',
         ["Leo Anna Tom", "Anna Leo Tom", "Anna Tom Leo"]),
        ("remove", f"Write the list with number 1 left out: {given}.", ["Tom"]),
        ("replace", f'Replace number 2 in the list with "Leo": {given}.', ["Anna Leo"]),
        ("replace", f'Replace one in the list with "Leo": {given}.', ["Leo Tom", "Anna Leo"]),
    ):  # fmt: skip
        problem, scorer = Problem("p", prompt + " Write only the list.", ""), task(name)
        tried = {" ".join(line) for size in (1, 2, 3) for line in permutations(("Anna", "Tom", "Leo"), size)}
        assert {line for line in tried if scorer.score(problem, formatted(line.split()))} == set(right), prompt
        best = formatted(right[0].split())
        assert scorer.score(problem, f"{given}, no: {best}") == 1
        assert scorer.score(problem, f"{best}, no: {given}") == 0
        assert scorer.score(problem, best.replace('"', "")) == 0, "names are in quotes"
