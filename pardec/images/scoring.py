"""Does an image show what its caption says?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .reading import Reading, Seen, read, relation
from .scenes import Scene, Thing, parse


@dataclass(frozen=True)
class Score:
    """What of a caption an image shows. Shares are over the things the caption names."""

    right: bool  # everything, and nothing else
    count: bool  # as many things
    shapes: float
    colours: float
    sizes: float
    place: bool  # the one thing's field, or the relation of the two
    background: bool


def score(pictures: NDArray[np.uint8], captions: Sequence[str]) -> list[Score]:
    """Score images [B, S, S, 3] of 0..255 against one caption each.

    Raises:
        SpecError: not as many captions as images, a caption that cannot be read, or arrays that are no images.
    """
    if len(captions) != len(pictures):
        raise SpecError(f"{len(pictures)} images but {len(captions)} captions", hint="give one caption an image")
    scenes = [parse(caption) for caption in captions]
    return [compare(seen, scene) for seen, scene in zip(read(pictures), scenes, strict=True)]


def compare(seen: Reading, scene: Scene) -> Score:
    """Score what was read; each thing of the scene is compared with the one seen that makes the most agree."""
    wanted = scene.things
    # Things that are not there stand as None, so that there is always one for each.
    there: list[Seen | None] = [*seen.things, *[None] * max(0, len(wanted) - len(seen.things))]
    pairs = max(permutations(there, len(wanted)), key=lambda some: sum(map(_agreeing, some, wanted)))
    shares = [
        sum(
            found is not None and getattr(found, of) == getattr(thing, of)
            for found, thing in zip(pairs, wanted, strict=True)
        )
        / len(wanted)
        for of in ("shape", "colour", "size")
    ]
    first, *others = pairs
    if first is None or None in others:
        place = False
    else:
        place = (relation(first, *(o for o in others if o)) if others else first.place) == scene.place
    return Score(
        right=seen.scene() == scene.canonical(),
        count=len(seen.things) == len(wanted),
        shapes=shares[0],
        colours=shares[1],
        sizes=shares[2],
        place=place,
        background=seen.background == scene.background,
    )


def _agreeing(found: Seen | None, thing: Thing) -> int:
    """How much of a thing agrees; the colour, which no two things of a scene share, decides."""
    if found is None:
        return 0
    return 3 * (found.colour == thing.colour) + (found.shape == thing.shape) + (found.size == thing.size)
