"""Scores of images: whether each shows what its caption describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .reading import DetectedShape, Reading, read, relation
from .scenes import Scene, Thing, parse


@dataclass(frozen=True)
class Score:
    """Which parts of its caption an image shows. Shares are over the shapes that the caption names."""

    right: bool  # everything, and nothing else
    count: bool  # whether the number of shapes is right
    shapes: float
    colours: float
    sizes: float
    place: bool  # the position of the one shape, or the relation of the two
    background: bool


def score(images: NDArray[np.uint8], captions: Sequence[str]) -> list[Score]:
    """Score images [B, S, S, 3] of 0..255 against one caption each.

    Raises:
        SpecError: not as many captions as images, a caption that cannot be read, or arrays that are no images.
    """
    if len(captions) != len(images):
        raise SpecError(f"{len(images)} images but {len(captions)} captions", hint="give one caption per image")
    scenes = [parse(caption) for caption in captions]
    return [compare(reading, scene) for reading, scene in zip(read(images), scenes, strict=True)]


def compare(reading: Reading, scene: Scene) -> Score:
    """Scores a reading: shapes of the scene are matched with the detected ones so that agreement is maximal."""
    targets = scene.things
    # None stands for every missing shape, so that each target has a candidate.
    detected: list[DetectedShape | None] = [*reading.things, *[None] * max(0, len(targets) - len(reading.things))]
    matches = max(permutations(detected, len(targets)), key=lambda some: sum(map(_agreement, some, targets)))
    shares = [
        sum(
            match is not None and getattr(match, name) == getattr(target, name)
            for match, target in zip(matches, targets, strict=True)
        )
        / len(targets)
        for name in ("shape", "colour", "size")
    ]
    first, *others = matches
    if first is None or None in others:
        place = False
    else:
        place = (relation(first, *(o for o in others if o)) if others else first.position) == scene.position
    return Score(
        right=reading.scene() == scene.canonical(),
        count=len(reading.things) == len(targets),
        shapes=shares[0],
        colours=shares[1],
        sizes=shares[2],
        place=place,
        background=reading.background == scene.background,
    )


def _agreement(match: DetectedShape | None, target: Thing) -> int:
    """The agreement of two shapes. The colour, which no two shapes of a scene share, has the most weight."""
    if match is None:
        return 0
    return 3 * (match.colour == target.colour) + (match.shape == target.shape) + (match.size == target.size)
