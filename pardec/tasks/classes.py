"""Images of one coloured shape, asked for by class: does an image show what its class says?"""

from __future__ import annotations

import random
import zlib
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..images.classes import NAMES, Score, scene, score
from ..images.distance import features
from ..images.drawing import SIDE, draw
from .base import Problem, Task, check_split, checked_count
from .captions import pixels

_TRUE = 1 << 42  # image seeds from here on belong to the reference images


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
        problems: list[Problem] = []
        for repeat in range(-(-checked_count(self.name, n) // len(NAMES))):
            labels = list(range(len(NAMES)))
            random.Random(f"{self.name}/{seed}/{repeat}").shuffle(labels)
            problems += [_problem(label, repeat) for label in labels]
        return problems[:n]

    def score(self, problem: Problem, answer: Any) -> float:
        return float(_scored(problem, answer).right)

    def lenient(self, problem: Problem, answer: Any) -> float:
        """The mean over what a class says: one thing, its shape, its colour and its size."""
        score = _scored(problem, answer)
        parts = (score.count, score.shape, score.colour, score.size)
        return sum(map(float, parts)) / len(parts)

    def seen(self, problem: Problem, answer: Any) -> dict[str, Any]:
        """The features of the image and of a reference image of the same class, from which `distance` is computed."""
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


@lru_cache(maxsize=4)  # `score` and `lenient` are called one after the other
def _read(data: bytes, label: int) -> Score:
    return score(np.frombuffer(data, np.uint8).reshape(1, SIDE, SIDE, 3), [label])[0]
