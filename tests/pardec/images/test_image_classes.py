"""Images of one shape by class: names, scenes and scores."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pardec.images import classes
from pardec.images.drawing import draw
from pardec.images.scenes import parse
from pardec.models.errors import SpecError


def render(*captions: str) -> np.ndarray:
    return draw([parse(caption) for caption in captions], list(range(len(captions))))


def test_every_size_colour_and_shape_is_one_class() -> None:
    assert len(set(classes.NAMES)) == len(classes.NAMES) == 36
    assert classes.NAMES[0] == "a small red circle"
    assert classes.NAMES[-1] == "a large purple triangle"
    assert classes.NAMES[1] == "a small red square"
    assert classes.NAMES[3] == "a small yellow circle"
    assert classes.NAMES[18] == "a large red circle"


def test_an_image_of_a_class_scores_right_for_it_and_for_no_other() -> None:
    rng = random.Random(0)
    scenes = [classes.scene(label, rng) for label in range(36)]
    assert [str(scene.things[0]) for scene in scenes] == list(classes.NAMES)
    assert all(len(scene.things) == 1 for scene in scenes)
    images = draw(scenes, list(range(36)))
    assert all(score.right for score in classes.score(images, range(36)))
    others = [(label + 1) % 36 for label in range(36)]
    assert not any(score.right for score in classes.score(images, others))


def test_positions_and_backgrounds_of_a_class_vary() -> None:
    rng = random.Random(1)
    scenes = [classes.scene(5, rng) for _ in range(400)]
    assert len({scene.position for scene in scenes}) == 9
    assert len({scene.background for scene in scenes}) == 3
    assert {scene.split for scene in scenes} == {"train", "heldout"}
    again = random.Random(1)
    assert scenes == [classes.scene(5, again) for _ in range(400)]


def test_a_score_shows_what_is_wrong() -> None:
    one, blank = "a large red circle in the middle on grey", np.full((1, 48, 48, 3), 128, np.uint8)
    two = "a large red circle left of a small blue square on grey"
    images = np.concatenate([render(one, two), blank])
    large_red_circle, small_red_circle = classes.NAMES.index("a large red circle"), 0
    right, beside, nothing = classes.score(images, [large_red_circle] * 3)
    assert right == classes.Score(right=True, count=True, shape=True, colour=True, size=True)
    assert beside == classes.Score(right=False, count=False, shape=True, colour=True, size=True)
    assert nothing == classes.Score(right=False, count=False, shape=False, colour=False, size=False)
    (small,) = classes.score(images[:1], [small_red_circle])
    assert small == classes.Score(right=False, count=True, shape=True, colour=True, size=False)


@pytest.mark.parametrize("label", [-1, 36])
def test_no_class_is_refused(label: int) -> None:
    with pytest.raises(SpecError, match=f"there is no class {label}") as caught:
        classes.scene(label, random.Random(0))
    assert "0 to 35" in str(caught.value.hint)


def test_one_label_per_image() -> None:
    with pytest.raises(SpecError, match="1 images but 2 labels"):
        classes.score(np.zeros((1, 48, 48, 3), np.uint8), [0, 1])
