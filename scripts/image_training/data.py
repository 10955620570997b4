"""Training images, a pure function of (seed, step): a resumed run trains on the same ones."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from pardec.images.classes import NAMES, scene
from pardec.images.drawing import draw
from pardec.images.scenes import Scene, parse, sample

FRESH = 1 << 40  # picture seeds from here on are drawn for measuring alone


def batch(seed: int, step: int, count: int) -> tuple[list[Scene], NDArray[np.uint8]]:
    """`count` scenes of the train split and their images [B, S, S, 3]."""
    rng = random.Random(f"{seed}/{step}")
    scenes = [sample(rng, "train") for _ in range(count)]
    return scenes, draw(scenes, [rng.randrange(FRESH) for _ in scenes])


def fresh(captions: list[str], seed: int = 7) -> NDArray[np.uint8]:
    """One image of each caption that no training step can have seen, [B, S, S, 3]."""
    return draw([parse(caption) for caption in captions], [FRESH + seed * 1_000_003 + i for i in range(len(captions))])


def of_classes(rng: random.Random, count: int) -> tuple[list[int], NDArray[np.uint8]]:
    """`count` classes, drawn evenly, and a picture [S, S, 3] of each."""
    labels = [rng.randrange(len(NAMES)) for _ in range(count)]
    return labels, draw([scene(label, rng) for label in labels], [rng.randrange(FRESH) for _ in labels])
