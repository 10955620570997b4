"""Images of coloured shapes: does an image show what its caption says?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from ..images.distance import features
from ..images.drawing import draw
from ..images.scenes import captions, parse
from ..images.scoring import Score, score
from ..images.shapes import SIDE
from .base import Problem, Task, checked_count

_TRUE = 1 << 41  # image seeds from here on are of the images that drawn ones are compared with


class Captions(Task):
    """Captions of one or two shapes; an image is right if all that is said can be read from it, and nothing else."""

    name = "captions"
    summary = "images of one or two coloured shapes, read back from their pixels"
    answers: ClassVar[str] = "picture"

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        checked_count(self.name, n)
        return [Problem(caption.replace(" ", "-"), caption, caption) for caption in captions(split, n, seed)]

    def score(self, problem: Problem, answer: Any) -> float:
        return float(_scored(problem, answer).right)

    def lenient(self, problem: Problem, answer: Any) -> float:
        """The mean of what can be right: the number of things, shapes, colours, sizes, place and background."""
        found = _scored(problem, answer)
        parts = (found.count, found.shapes, found.colours, found.sizes, found.place, found.background)
        return sum(map(float, parts)) / len(parts)

    def seen(self, problem: Problem, answer: Any) -> dict[str, Any]:
        """Features of the image, and of a true one of the same caption: what `distance` is made from."""
        caption = str(problem.prompt)
        true = draw([parse(caption)], [_TRUE + sum(map(ord, caption))])
        pair = features(np.concatenate([pixels(answer)[None], true]))
        return {"features": np.round(pair[0], 4).tolist(), "true_features": np.round(pair[1], 4).tolist()}


def pixels(image: Any) -> NDArray[np.uint8]:
    """An image [S, S, 3] of 0..255. Raises SpecError for one of a size that cannot be read back."""
    found = np.asarray(image)
    if found.shape != (SIDE, SIDE, 3):
        raise SpecError(
            f"an image of {'x'.join(map(str, found.shape))} cannot be read",
            hint=f"it takes images of {SIDE}x{SIDE} pixels, such as tiny-llamagen draws",
        )
    return found


def _scored(problem: Problem, image: Any) -> Score:
    return _read(pixels(image).tobytes(), str(problem.prompt))


@lru_cache(maxsize=4)  # strict and lenient are asked one after the other
def _read(held: bytes, caption: str) -> Score:
    image = np.frombuffer(held, np.uint8).reshape(1, SIDE, SIDE, 3)
    return score(image, [caption])[0]
