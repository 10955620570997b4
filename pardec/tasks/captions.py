"""Images of coloured shapes: does an image show what its caption says?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from ..images.distance import features
from ..images.drawing import SIDE, draw
from ..images.scenes import captions, parse
from ..images.scoring import Score, score
from .base import Problem, Task, checked_count

_TRUE = 1 << 41  # image seeds from here on belong to the reference images


class Captions(Task):
    """Captions of one or two shapes; an image is right if it shows what its caption says, and nothing else."""

    name = "captions"
    summary = "images of one or two coloured shapes, read back from their pixels"
    answers: ClassVar[str] = "picture"

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        checked_count(self.name, n)
        return [Problem(caption.replace(" ", "-"), caption, caption) for caption in captions(split, n, seed)]

    def score(self, problem: Problem, answer: Any) -> float:
        return float(_scored(problem, answer).right)

    def lenient(self, problem: Problem, answer: Any) -> float:
        """The mean over what a caption says: the number of things, shapes, colours, sizes, position and background."""
        score = _scored(problem, answer)
        parts = (score.count, score.shapes, score.colours, score.sizes, score.place, score.background)
        return sum(map(float, parts)) / len(parts)

    def seen(self, problem: Problem, answer: Any) -> dict[str, Any]:
        """The features of the image and of a reference image of the same caption, from which `distance` is computed."""
        caption = str(problem.prompt)
        true = draw([parse(caption)], [_TRUE + sum(map(ord, caption))])
        pair = features(np.concatenate([pixels(answer)[None], true]))
        return {"features": np.round(pair[0], 4).tolist(), "true_features": np.round(pair[1], 4).tolist()}


def pixels(image: Any) -> NDArray[np.uint8]:
    """An image [S, S, 3] of 0..255. Raises SpecError for one of a size that cannot be read back."""
    array = np.asarray(image)
    if array.shape != (SIDE, SIDE, 3):
        raise SpecError(
            f"an image of {'x'.join(map(str, array.shape))} cannot be read",
            hint=f"it takes images of {SIDE}x{SIDE} pixels, such as tiny-llamagen draws",
        )
    return array


def _scored(problem: Problem, image: Any) -> Score:
    return _read(pixels(image).tobytes(), str(problem.prompt))


@lru_cache(maxsize=4)  # `score` and `lenient` are called one after the other
def _read(data: bytes, caption: str) -> Score:
    image = np.frombuffer(data, np.uint8).reshape(1, SIDE, SIDE, 3)
    return score(image, [caption])[0]
