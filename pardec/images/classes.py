"""Images of one thing, by class: its size, colour and shape. Where it lies, and on what, is left to who draws.

Classes are what a model of images that reads no text is asked for; labels count them from 0.
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
from .scenes import BACKGROUNDS, COLOURS, PLACES, SHAPES, SIZES, Scene, Thing

THINGS = tuple(Thing(*each) for each in product(SIZES, COLOURS, SHAPES))
NAMES = tuple(map(str, THINGS))


@dataclass(frozen=True)
class Score:
    """What of its class an image shows."""

    right: bool  # one thing, and all of it
    count: bool  # one thing
    shape: bool  # of the largest thing, as are the next two
    colour: bool
    size: bool


def thing(label: int) -> Thing:
    """What a class shows.

    Raises:
        SpecError: no class.

    >>> NAMES[0], thing(35).colour
    ('a small red circle', 'purple')
    """
    if not 0 <= label < len(THINGS):
        raise SpecError(f"there is no class {label}", hint=f"classes are 0 to {len(THINGS) - 1}")
    return THINGS[label]


def scene(label: int, rng: random.Random) -> Scene:
    """A scene of the class, its place and background drawn evenly; advances rng. Raises SpecError for no class."""
    shown = thing(label)
    return Scene((shown,), rng.choice(tuple(PLACES)), rng.choice(tuple(BACKGROUNDS)))


def score(pictures: NDArray[np.uint8], labels: Sequence[int]) -> list[Score]:
    """Score images [B, S, S, 3] of 0..255 against one class each.

    Raises:
        SpecError: not as many labels as images, no class, or arrays that are no images.
    """
    if len(labels) != len(pictures):
        raise SpecError(f"{len(pictures)} images but {len(labels)} labels", hint="give one label an image")
    wanted = [thing(label) for label in labels]
    return [compare(seen, one) for seen, one in zip(read(pictures), wanted, strict=True)]


def compare(seen: Reading, wanted: Thing) -> Score:
    """Score what was read; the largest thing is held against the class."""
    if not seen.things:
        return Score(right=False, count=False, shape=False, colour=False, size=False)
    largest, alone = seen.things[0], len(seen.things) == 1
    agree = [getattr(largest, of) == getattr(wanted, of) for of in ("shape", "colour", "size")]
    return Score(all(agree) and alone, alone, *agree)
