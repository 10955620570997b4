"""How near a set of images is to true ones: the Fréchet distance between features that the scorer sees.

GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium, https://arxiv.org/abs/1706.08500

    distance = |mean_a - mean_b|² + trace(cov_a + cov_b - 2 (cov_a cov_b)^½)

The features are this package's own, in units of their spread over the true images: distances compare images made
for the same captions, and say nothing beside those of other networks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .reading import Reading, read
from .scenes import BACKGROUNDS, COLOURS, SHAPES, SIZES
from .shapes import SIDE

_PALETTE = np.array([*COLOURS.values(), *BACKGROUNDS.values()], np.float32)
_FIELDS = 4  # a side, in which is counted what is off the ground
_OFF = 50.0  # levels from the ground
_CELL = 4  # pixels along a side of a cell
_LEAST = 1e-3  # spread below which a feature counts as constant


def features(pictures: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What the scorer sees of images [B, S, S, 3] of 0..255, as vectors [B, 37].

    Shares of the named colours, where something is off the ground, how rough the image is, and what was read.

    Raises:
        SpecError: arrays that are no images.
    """
    rows = [_features(image.astype(np.float32), seen) for image, seen in zip(pictures, read(pictures), strict=True)]
    return np.array(rows, np.float64)


def _features(image: NDArray[np.float32], seen: Reading) -> NDArray[np.float64]:
    rim = np.concatenate([image[0], image[-1], image[1:-1, 0], image[1:-1, -1]])
    ground = np.median(rim, 0)
    nearest = np.linalg.norm(image[:, :, None] - _PALETTE, axis=-1).argmin(-1)
    shares = np.bincount(nearest.ravel(), minlength=len(_PALETTE)) / nearest.size
    off = np.linalg.norm(image - ground, axis=-1) > _OFF
    step = SIDE // _FIELDS
    fields = off.reshape(_FIELDS, step, _FIELDS, step).mean((1, 3)).ravel()
    grey = image.mean(-1)
    # Texture in cells, which pixel noise hardly reaches: a tokenizer that drops the noise is not judged by that alone.
    cells = grey.reshape(SIDE // _CELL, _CELL, SIDE // _CELL, _CELL).mean((1, 3))
    steps = [np.median(np.abs(np.diff(cells, axis=axis))) for axis in (0, 1)]
    edges = np.square(np.diff(grey, axis=0)).mean() + np.square(np.diff(grey, axis=1)).mean()
    rough = [*steps, rim.std(0).mean(), edges**0.5]
    count = len(seen.things)
    radius = sum(thing.radius for thing in seen.things) / max(count, 1)
    shapes = [sum(thing.shape == shape for thing in seen.things) for shape in SHAPES]
    sizes = [sum(thing.size == size for thing in seen.things) for size in SIZES]
    return np.array([*shares, *fields, *ground, *rough, radius, *shapes, *sizes[:1]], np.float64)


def distance(pictures: NDArray[np.uint8], true: NDArray[np.uint8]) -> float:
    """The Fréchet distance of images from true ones, both [B, S, S, 3] of 0..255, at least two each.

    Raises:
        SpecError: fewer, or arrays that are no images.
    """
    return apart(features(pictures), features(true))


def apart(made: NDArray[np.float64], true: NDArray[np.float64]) -> float:
    """`distance` of images whose features are known, both [B, 37]."""
    spread = np.maximum(true.std(0), _LEAST)
    return frechet(made / spread, true / spread)


def frechet(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The Fréchet distance of the normal distributions that two sets of vectors [n, D] have mean and covariance of.

    Raises:
        SpecError: fewer than two vectors, or vectors of two lengths.
    """
    if min(len(a), len(b)) < 2 or a.shape[1:] != b.shape[1:]:
        raise SpecError(
            f"no distance between sets of shape {list(a.shape)} and {list(b.shape)}",
            hint="each needs at least two vectors, all of one length",
        )
    one, other = (np.cov(x, rowvar=False).reshape(x.shape[1], -1) for x in (a, b))
    values, vectors = np.linalg.eigh(one)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    # cov_a cov_b has the eigenvalues of this, which is symmetric: their roots are real.
    shared = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other @ root), 0, None)).sum()
    apart = np.square(a.mean(0) - b.mean(0)).sum()
    return float(max(0.0, apart + np.trace(one) + np.trace(other) - 2 * shared))
