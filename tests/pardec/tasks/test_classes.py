"""Classes as a task: scores of images, the problems, and the values that a comparison stores."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PIL.Image import fromarray

import pardec
from pardec.comparison.metrics import distance
from pardec.images.classes import NAMES, scene
from pardec.images.drawing import draw
from pardec.models.errors import SpecError
from pardec.tasks import Problem

task = pardec.task("classes")


def pictures(problems: list[Problem], first: int) -> np.ndarray:
    """True images of the classes of problems."""
    scenes = [scene(problem.label or 0, random.Random(first + at)) for at, problem in enumerate(problems)]
    return draw(scenes, range(first, first + len(problems)))


def test_every_class_comes_once_before_any_comes_twice() -> None:
    problems = task.problems(n=80, seed=3)
    labels = [problem.label for problem in problems]
    for turn in range(2):
        assert sorted(labels[36 * turn : 36 * turn + 36]) == list(range(36))
    assert labels[:36] != sorted(labels[:36])
    assert labels[:36] != labels[36:72]
    assert len({problem.id for problem in problems}) == 80
    assert task.problems(n=5, seed=3) == problems[:5]
    assert task.problems(n=5, seed=4) != problems[:5]
    assert all(problem.prompt == NAMES[problem.label or 0] == problem.answer for problem in problems)
    with pytest.raises(SpecError, match="unknown split 'test'"):
        task.problems(split="test")
    with pytest.raises(SpecError, match="n must lie in"):
        task.problems(n=0)


def test_a_picture_of_its_class_is_right_and_of_another_is_not() -> None:
    problems = task.problems(n=12)
    made = pictures(problems, 40)
    assert [task.score(problem, fromarray(one)) for problem, one in zip(problems, made, strict=True)] == [1.0] * 12
    assert task.lenient(problems[0], made[0]) == 1.0
    assert task.score(problems[0], made[1]) == 0.0
    size, colour, shape = NAMES[problems[0].label or 0].split()[1:]
    other = NAMES[problems[1].label or 0].split()[1:]
    agree = sum(one == two for one, two in zip((size, colour, shape), other, strict=True))
    assert task.lenient(problems[0], made[1]) == (1 + agree) / 4  # it shows one thing in any case
    assert task.score(problems[0], np.full((48, 48, 3), 128, np.uint8)) == 0.0
    with pytest.raises(SpecError, match="an image of 16x16x3 cannot be read"):
        task.score(problems[0], np.zeros((16, 16, 3), np.uint8))


def test_true_pictures_are_near_to_true_ones() -> None:
    problems = task.problems(n=36)
    right = pictures(problems, 900)
    rows = [{"error": None, **task.seen(problem, one)} for problem, one in zip(problems, right, strict=True)]
    assert task.seen(problems[3], right[3]) == task.seen(problems[3], right[3])
    assert len({tuple(row["true_features"]) for row in rows}) == 36
    grey = [{**row, "features": [0.0] * len(row["features"])} for row in rows]
    near, far = distance(rows), distance(grey)
    assert far is not None
    assert near < far / 3
