"""Images of one shape by class: its size, colour and kind, whatever its position and the background.

Classes condition image models that read no text; labels count them from 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .reading import Reading, read
from .scenes import BACKGROUNDS, COLOURS, POSITIONS, SHAPES, SIZES, Scene, Thing

THINGS = tuple(Thing(*each) for each in product(SIZES, COLOURS, SHAPES))
NAMES = tuple(map(str, THINGS))


@dataclass(frozen=True)
class Score:
    """Which properties of its class an image shows."""

    right: bool  # one shape, with all properties of the class
    count: bool  # exactly one shape
    shape: bool  # whether the largest shape has it; likewise the next two
    colour: bool
    size: bool


def thing(label: int) -> Thing:
    """The shape of a class.

    Raises:
        SpecError: the label is no class.

    >>> NAMES[0], thing(35).colour
    ('a small red circle', 'purple')
    """
    if not 0 <= label < len(THINGS):
        raise SpecError(f"there is no class {label}", hint=f"classes are 0 to {len(THINGS) - 1}")
    return THINGS[label]


def scene(label: int, rng: random.Random) -> Scene:
    """A scene of the class, its position and background chosen uniformly; advances rng. Raises what `thing` raises."""
    return Scene((thing(label),), rng.choice(tuple(POSITIONS)), rng.choice(tuple(BACKGROUNDS)))


def score(images: NDArray[np.uint8], labels: Sequence[int]) -> list[Score]:
    """Score images [B, S, S, 3] of 0..255 against one class each.

    Raises:
        SpecError: not as many labels as images, a label that is no class, or arrays that are no images.
    """
    if len(labels) != len(images):
        raise SpecError(f"{len(images)} images but {len(labels)} labels", hint="give one label per image")
    targets = [thing(label) for label in labels]
    return [compare(reading, target) for reading, target in zip(read(images), targets, strict=True)]


def compare(reading: Reading, target: Thing) -> Score:
    """Scores a reading by comparing its largest shape with the class."""
    if not reading.things:
        return Score(right=False, count=False, shape=False, colour=False, size=False)
    largest, alone = reading.things[0], len(reading.things) == 1
    matches = [getattr(largest, name) == getattr(target, name) for name in ("shape", "colour", "size")]
    return Score(all(matches) and alone, alone, *matches)
