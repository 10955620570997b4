"""Captions as a task: scores of images, and the values that a comparison stores."""

from __future__ import annotations

import numpy as np
import pytest
from PIL.Image import fromarray

import pardec
from pardec.images.distance import distance
from pardec.images.drawing import draw
from pardec.images.scenes import parse
from pardec.models.errors import SpecError

task = pardec.task("captions")


def test_a_picture_of_its_caption_is_right_and_of_another_is_not() -> None:
    problems = task.problems(n=12, seed=3)
    assert len({problem.id for problem in problems}) == 12
    assert all(parse(problem.prompt).split == "heldout" for problem in problems)
    pictures = draw([parse(problem.prompt) for problem in problems], range(12))
    assert [task.score(problem, fromarray(picture)) for problem, picture in zip(problems, pictures, strict=True)] == [
        1.0
    ] * 12
    assert task.lenient(problems[0], pictures[0]) == 1.0
    assert task.score(problems[0], pictures[1]) == 0.0
    assert 0 < task.lenient(problems[0], pictures[1]) < 1


def test_an_empty_picture_gets_its_background_only() -> None:
    (problem,) = task.problems(n=1)
    grey = np.full((48, 48, 3), 128, np.uint8)
    assert task.score(problem, grey) == 0.0
    assert task.lenient(problem, grey) == pytest.approx((parse(problem.prompt).background == "grey") / 6)


def test_features_are_those_that_the_distance_is_made_of() -> None:
    problems = task.problems(n=4)
    pictures = draw([parse(problem.prompt) for problem in problems], [5, 6, 7, 8])
    seen = [task.seen(problem, picture) for problem, picture in zip(problems, pictures, strict=True)]
    true = np.array([one["true_features"] for one in seen])
    assert true.shape == (4, len(seen[0]["features"]))
    assert task.seen(problems[0], pictures[0]) == seen[0]
    assert seen[0]["features"] != seen[0]["true_features"]
    from pardec.comparison.metrics import distance as of_rows

    rows = [{"error": None, **one} for one in seen]
    again = draw([parse(problem.prompt) for problem in problems], [5, 6, 7, 8])
    assert distance(again, pictures) == pytest.approx(0, abs=1e-6)
    assert of_rows(rows) > 0
    assert of_rows(rows[:1]) is None


def test_pictures_of_other_sizes_are_refused() -> None:
    (problem,) = task.problems(n=1)
    with pytest.raises(SpecError, match="an image of 16x16x3 cannot be read"):
        task.score(problem, np.zeros((16, 16, 3), np.uint8))
