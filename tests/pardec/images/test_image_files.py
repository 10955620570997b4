"""Images of shapes: captions and their split, drawing, detection, scores and the distance of two sets."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from pardec.images.distance import distance, feature_distance, features, frechet
from pardec.images.drawing import AREA, RADII, SIDE, coverage, draw
from pardec.images.reading import DetectedShape, Reading, read
from pardec.images.scenes import (
    BACKGROUNDS,
    COLOURS,
    POSITIONS,
    RELATIONS,
    SHAPES,
    Scene,
    Thing,
    captions,
    parse,
    sample,
)
from pardec.images.scoring import compare, score
from pardec.models.errors import SpecError

CAPTION = "a small red circle left of a large blue square on grey"


def scenes(count: int, seed: int = 0) -> list[Scene]:
    rng = random.Random(seed)
    return [sample(rng, None) for _ in range(count)]


# -- captions --------------------------------------------------------------------------------------------------


def test_a_caption_describes_its_scene() -> None:
    scene = parse(CAPTION)
    things = (Thing("small", "red", "circle"), Thing("large", "blue", "square"))
    assert scene == Scene(things, "left of", "grey")
    assert parse("A large  green triangle at the top left on black").position == "at the top left"
    for scene in scenes(200):
        assert parse(scene.caption) == scene


def test_the_same_image_in_other_words_is_the_same_scene_and_split() -> None:
    other = parse("a large blue square right of a small red circle on grey")
    assert other != parse(CAPTION)
    assert other.canonical() == parse(CAPTION)
    assert parse("a small red circle below a large blue square on grey").canonical().position == "above"
    for scene in scenes(150):
        if len(scene.things) == 2:
            back = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}[scene.position]
            assert Scene(scene.things[::-1], back, scene.background).split == scene.split


@pytest.mark.parametrize(
    ("caption", "message"),
    [
        ("", "has no 'a' where a shape begins"),
        ("a cat", "'cat' is no size"),
        ("a small rde circle at the top on grey", "'rde' is no colour"),
        ("a small red", "the end is no shape"),
        ("a small red circle near a large blue square on grey", "no position"),
        ("a small red circle left of a large red square on grey", "both shapes"),
        ("a small red circle at the top", "does not end in a background"),
        ("a small red circle at the top on pink", "'pink' is no background"),
        ("a small red circle at the top on grey today", "continues after its background: 'today'"),
    ],
)
def test_a_caption_of_another_form_is_refused(caption: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse(caption)
    assert caught.value.hint


def test_splits_are_apart_and_captions_stay_for_a_larger_n(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.images.scenes._PATIENCE", 100)
    heldout, train = set(captions("heldout", 50)), set(captions("train", 300))
    assert not heldout & train
    assert all(parse(caption).split == "heldout" for caption in heldout)
    assert captions("heldout", 50)[:20] == captions("heldout", 20)
    assert captions("heldout", 20, seed=8) != captions("heldout", 20)
    share = sum(scene.split == "heldout" for scene in scenes(600)) / 600
    assert 0.07 < share < 0.13
    for wrong, message in (
        ({"split": "test"}, "unknown split"),
        ({"n": 0}, "at least 1"),
        ({"split": "heldout", "n": 10**5}, "has only"),
    ):
        with pytest.raises(SpecError, match=message):
            captions(**wrong)  # type: ignore[arg-type]


# -- drawing ---------------------------------------------------------------------------------------------------


def test_an_image_depends_on_its_scene_and_seed_only() -> None:
    some = scenes(50)
    together = draw(some, range(50))
    assert together.shape == (50, SIDE, SIDE, 3)
    assert together.dtype == np.uint8
    assert (draw(some[40:41], [40])[0] == together[40]).all()
    assert (draw(some[40:41], [41])[0] != together[40]).mean() > 0.5
    assert draw([], []).shape == (0, SIDE, SIDE, 3)
    with pytest.raises(SpecError, match="2 scenes but 1 seeds"):
        draw(some[:2], [1])
    with pytest.raises(SpecError, match="negative"):
        draw(some[:1], [-1])


@pytest.mark.parametrize("shape", SHAPES)
def test_an_outline_covers_the_area_it_should(shape: str) -> None:
    for radius in (5.8, 9.7):
        covered = coverage(shape, *(np.array([value], np.float32) for value in (23.3, 24.6, radius)))[0]
        assert covered.sum() == pytest.approx(AREA[shape] * radius**2, rel=0.03)
        assert covered.max() == 1
        assert covered[0].max() == 0


def test_shapes_stay_in_the_image_and_do_not_touch() -> None:
    large = [
        Scene((Thing("large", "red", a), Thing("large", "cyan", b)), r, "grey")
        for a in SHAPES
        for b in SHAPES
        for r in RELATIONS
    ]
    images = draw(large, range(len(large))).astype(int)
    red = (np.abs(images - COLOURS["red"]).sum(-1) < 90).sum((1, 2))
    cyan = (np.abs(images - COLOURS["cyan"]).sum(-1) < 90).sum((1, 2))
    least = min(AREA.values()) * RADII["large"][0] ** 2 * 0.75
    assert min(red.min(), cyan.min()) > least
    rim = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], 1)
    assert np.abs(rim - BACKGROUNDS["grey"]).max() < 60


def test_drawing_is_fast() -> None:
    some = scenes(256)
    draw(some, range(256))
    spent = []
    for _ in range(3):
        before = time.process_time()
        draw(some, range(256))
        spent.append(time.process_time() - before)
    assert min(spent) < 0.4  # a tenth of a second where nothing else runs


# -- reading ---------------------------------------------------------------------------------------------------


def test_fresh_images_read_back_right() -> None:
    some = scenes(60, seed=3)
    pairs = zip(some, read(draw(some, range(10_000, 10_060))), strict=True)
    wrong = [scene.caption for scene, reading in pairs if reading.scene() != scene.canonical()]
    assert not wrong


@pytest.mark.slow
def test_thousands_of_fresh_images_read_back_right() -> None:
    some = scenes(5000, seed=6)
    readings = read(draw(some, range(20_000, 25_000)))
    assert sum(reading.scene() == scene.canonical() for scene, reading in zip(some, readings, strict=True)) >= 4995


def blurred(images: np.ndarray, radius: float) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(p).filter(ImageFilter.GaussianBlur(radius))) for p in images])


def downscaled(images: np.ndarray) -> np.ndarray:
    small = [Image.fromarray(p).resize((28, 28), Image.Resampling.BOX) for p in images]
    return np.stack([np.asarray(p.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for p in small])


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("noise", 1.0),
        *(pytest.param(name, 0.99, marks=pytest.mark.slow) for name in ("blur", "darker")),
        ("shifted", 0.97),
        ("shrunk", 0.95),
    ],
)
def test_distorted_images_read_back_right(name: str, least: float) -> None:
    some = scenes(100, seed=4)
    images = draw(some, range(100))
    rng = np.random.default_rng(0)
    distorted = {
        "noise": lambda: np.clip(images + rng.normal(0, 12, images.shape), 0, 255).astype(np.uint8),
        "blur": lambda: blurred(images, 0.8),
        "darker": lambda: (images * 0.93).astype(np.uint8),
        "shifted": lambda: np.roll(images, (1, -1), (1, 2)),
        "shrunk": lambda: downscaled(images),
    }[name]()
    readings = read(distorted)
    right = sum(reading.scene() == scene.canonical() for scene, reading in zip(some, readings, strict=True))
    assert right >= least * len(some), right


def test_what_is_no_scene_is_not_read_as_one() -> None:
    flat = np.full((1, SIDE, SIDE, 3), 128, np.uint8)
    assert read(flat)[0] == Reading((), "grey")
    assert read(flat)[0].scene() is None
    assert read(np.full((1, SIDE, SIDE, 3), (255, 0, 255), np.uint8))[0].background is None
    noise = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    assert all(reading.scene() is None for reading in read(noise))
    bar = flat.copy()
    bar[0, 4:9, 4:44] = COLOURS["red"]
    assert [thing.shape for thing in read(bar)[0].things] == [None]
    ring = flat.copy()
    at = np.hypot(*(np.mgrid[:SIDE, :SIDE] - 23.5))
    ring[0, (at < 12) & (at > 7)] = COLOURS["red"]
    assert [thing.shape for thing in read(ring)[0].things] == [None]
    three = draw([parse(CAPTION)], [0])
    three[0, 40:47, 1:8] = COLOURS["green"]
    assert len(read(three)[0].things) == 3
    assert read(three)[0].scene() is None
    for wrong in (flat[0], flat.astype(np.float32), flat[:, :40]):
        with pytest.raises(SpecError, match="cannot read images of shape"):
            read(wrong)


# -- scoring ---------------------------------------------------------------------------------------------------


def test_a_score_shows_what_is_wrong() -> None:
    right = score(draw([parse(CAPTION)], [1]), [CAPTION])[0]
    assert right.right
    assert (right.count, right.shapes, right.colours, right.sizes, right.place, right.background) == (
        True,
        1,
        1,
        1,
        True,
        True,
    )
    others = {
        "a small red circle left of a large blue square on white": ("background", False),
        "a small red circle above a large blue square on grey": ("place", False),
        "a small red circle right of a large blue square on grey": ("place", False),
        "a small red triangle left of a large blue square on grey": ("shapes", 0.5),
        "a large red circle left of a large blue square on grey": ("sizes", 0.5),
        "a small green circle left of a large blue square on grey": ("colours", 0.5),
    }
    for caption, (what, value) in others.items():
        wrong = score(draw([parse(CAPTION)], [1]), [caption])[0]
        assert wrong == replace(right, right=False, **{what: value}), caption
    one = score(draw([parse("a small red circle at the left on grey")], [1]), [CAPTION])[0]
    assert (one.count, one.colours, one.place, one.right) == (False, 0.5, False, False)
    more = score(draw([parse(CAPTION)], [1]), ["a small red circle at the left on grey"])[0]
    assert (more.right, more.count, more.colours, more.shapes) == (False, False, 1, 1)
    with pytest.raises(SpecError, match="1 images but 2 captions"):
        score(draw([parse(CAPTION)], [1]), [CAPTION, CAPTION])


def test_shapes_are_matched_by_colour_whatever_their_order() -> None:
    red, blue = DetectedShape("red", "circle", 6, 10, 24, 1), DetectedShape("blue", "square", 9.5, 34, 24, 1)
    for things in ((red, blue), (blue, red)):
        assert compare(Reading(things, "grey"), parse(CAPTION)).right
    swapped = compare(Reading((replace(red, x=34.0), replace(blue, x=10.0)), "grey"), parse(CAPTION))
    assert (swapped.colours, swapped.shapes, swapped.place, swapped.right) == (1, 1, False, False)
    # Everything but the colours says the pairs are crossed; the colours decide.
    crossed = compare(
        Reading((replace(red, shape="square", radius=9.5), replace(blue, shape="circle", radius=6)), "grey"),
        parse(CAPTION),
    )
    assert (crossed.colours, crossed.shapes, crossed.sizes, crossed.place) == (1, 0, 0, True)
    empty = compare(Reading((), None), parse(CAPTION))
    assert (empty.count, empty.shapes, empty.place, empty.background) == (False, 0, False, False)


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_is_read(position: str) -> None:
    for shape in SHAPES:
        for size in RADII:
            scene = Scene((Thing(size, "yellow", shape),), position, "white")
            assert {reading.things[0].position for reading in read(draw([scene] * 2, range(2)))} == {position}


# -- distance --------------------------------------------------------------------------------------------------


def test_the_distance_of_normal_distributions_is_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3))
    x = (x - x.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(x, rowvar=False))).T  # mean 0, covariance 1, exactly
    assert frechet(x, x) == pytest.approx(0, abs=1e-9)
    # Diagonal: |mean|² + sum (s - t)²
    assert frechet(x * [1, 2, 3], x * [2, 2, 1] + [1, 0, 2]) == pytest.approx(5 + 1 + 0 + 4)
    # Covariances that do not commute, [[2, 1], [1, 2]] and diag(4, 1): trace of the root is sqrt(tr + 2 sqrt(det)).
    one, other = x[:, :2] @ np.linalg.cholesky([[2, 1], [1, 2]]).T, x[:, :2] * [2, 1]
    expected = 4 + 5 - 2 * np.sqrt(10 + 2 * np.sqrt(12))
    assert frechet(one, other) == pytest.approx(expected)
    assert frechet(other, one) == pytest.approx(expected)
    with pytest.raises(SpecError, match="no distance between sets"):
        frechet(x[:1], x)
    with pytest.raises(SpecError, match="no distance between sets"):
        frechet(x, x[:, :2])


def test_worse_images_have_a_larger_distance() -> None:
    some = scenes(60, seed=5)
    true, again = draw(some, range(60)), draw(some, range(1000, 1060))
    known = features(true)
    assert known.shape == (60, 37)
    near = distance(again, true)
    assert near < 5
    grey = draw([Scene(scene.things, scene.position, "grey") for scene in some], range(60))
    assert feature_distance(features(blurred(again, 1.5)), known) > 2 * near
    assert feature_distance(features(grey), known) > 2 * near
    assert feature_distance(known, known) == pytest.approx(0, abs=1e-6)
