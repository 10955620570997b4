"""Images of one coloured shape, asked for by class: does an image show what its class says?"""

from __future__ import annotations

import random
import zlib
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..images.classes import NAMES, Score, scene, score
from ..images.distance import features
from ..images.drawing import draw
from ..images.shapes import SIDE
from .base import Problem, Task, check_split, checked_count
from .captions import pixels

_TRUE = 1 << 42  # image seeds from here on are of the images that drawn ones are compared with


class Classes(Task):
    """Classes of one shape; an image is right if it shows one thing, of the size, colour and shape of its class."""

    name = "classes"
    summary = "images of one coloured shape, asked for by class and read back from their pixels"
    answers: ClassVar[str] = "picture"
    asks: ClassVar[str] = "class"

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        """Every class once in an order of the seed's, then every class once more, and so on.

        The splits are the same: a class says nothing that could be held out. Raises SpecError for an unknown one.
        """
        check_split(split)
        found: list[Problem] = []
        for repeat in range(-(-checked_count(self.name, n) // len(NAMES))):
            labels = list(range(len(NAMES)))
            random.Random(f"{self.name}/{seed}/{repeat}").shuffle(labels)
            found += [_problem(label, repeat) for label in labels]
        return found[:n]

    def score(self, problem: Problem, answer: Any) -> float:
        return float(_scored(problem, answer).right)

    def lenient(self, problem: Problem, answer: Any) -> float:
        """The mean of what can be right: that there is one thing, its shape, its colour and its size."""
        found = _scored(problem, answer)
        parts = (found.count, found.shape, found.colour, found.size)
        return sum(map(float, parts)) / len(parts)

    def seen(self, problem: Problem, answer: Any) -> dict[str, Any]:
        """Features of the image, and of a true one of the same class: what `distance` is made from."""
        number = zlib.crc32(problem.id.encode())
        true = draw([scene(_label(problem), random.Random(number))], [_TRUE + number])
        pair = features(np.concatenate([pixels(answer)[None], true]))
        return {"features": np.round(pair[0], 4).tolist(), "true_features": np.round(pair[1], 4).tolist()}


def _problem(label: int, repeat: int) -> Problem:
    name = NAMES[label].replace(" ", "-")
    return Problem(f"{name}-{repeat + 1}" if repeat else name, NAMES[label], NAMES[label], label=label)


def _label(problem: Problem) -> int:
    assert problem.label is not None, "made by `problems`"
    return problem.label


def _scored(problem: Problem, image: Any) -> Score:
    return _read(pixels(image).tobytes(), _label(problem))


@lru_cache(maxsize=4)  # strict and lenient are asked one after the other
def _read(held: bytes, label: int) -> Score:
    return score(np.frombuffer(held, np.uint8).reshape(1, SIDE, SIDE, 3), [label])[0]
