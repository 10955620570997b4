"""The Fréchet distance between the features of generated and true images, from the same detector as the scores.

GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium, https://arxiv.org/abs/1706.08500

    distance = |mean_a - mean_b|² + trace(cov_a + cov_b - 2 (cov_a cov_b)^½)

Features are divided by their standard deviation over the true images. They are not those of Inception: compare
distances only with each other, for the same captions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .drawing import SIDE
from .reading import Reading, read
from .scenes import BACKGROUNDS, COLOURS, SHAPES, SIZES

_PALETTE = np.array([*COLOURS.values(), *BACKGROUNDS.values()], np.float32)
_FIELDS = 4  # per side, for the share of pixels that differ from the background
_OFF = 50.0  # colour levels from which a pixel differs from the background
_PATCH = 4  # pixels along a side of a patch, for the texture
_MIN_SPREAD = 1e-3  # standard deviation below which a feature counts as constant


def features(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Feature vectors [B, 37] of images [B, S, S, 3] of 0..255.

    Shares of the named colours, where pixels differ from the background, roughness, and the detected shapes.

    Raises:
        SpecError: arrays that are no images.
    """
    pairs = zip(images, read(images), strict=True)
    return np.array([_features(image.astype(np.float32), reading) for image, reading in pairs], np.float64)


def _features(image: NDArray[np.float32], reading: Reading) -> NDArray[np.float64]:
    rim = np.concatenate([image[0], image[-1], image[1:-1, 0], image[1:-1, -1]])
    background = np.median(rim, 0)
    nearest = np.linalg.norm(image[:, :, None] - _PALETTE, axis=-1).argmin(-1)
    shares = np.bincount(nearest.ravel(), minlength=len(_PALETTE)) / nearest.size
    off = np.linalg.norm(image - background, axis=-1) > _OFF
    step = SIDE // _FIELDS
    fields = off.reshape(_FIELDS, step, _FIELDS, step).mean((1, 3)).ravel()
    grey = image.mean(-1)
    # Averages over patches hide the pixel noise: a tokenizer that drops it is not judged by that alone.
    patches = grey.reshape(SIDE // _PATCH, _PATCH, SIDE // _PATCH, _PATCH).mean((1, 3))
    steps = [np.median(np.abs(np.diff(patches, axis=axis))) for axis in (0, 1)]
    edges = np.square(np.diff(grey, axis=0)).mean() + np.square(np.diff(grey, axis=1)).mean()
    rough = [*steps, rim.std(0).mean(), edges**0.5]
    count = len(reading.things)
    radius = sum(thing.radius for thing in reading.things) / max(count, 1)
    shapes = [sum(thing.shape == shape for thing in reading.things) for shape in SHAPES]
    sizes = [sum(thing.size == size for thing in reading.things) for size in SIZES]
    return np.array([*shares, *fields, *background, *rough, radius, *shapes, *sizes[:1]], np.float64)


def distance(images: NDArray[np.uint8], true: NDArray[np.uint8]) -> float:
    """The Fréchet distance of images from true ones, both [B, S, S, 3] of 0..255, at least two each.

    Raises:
        SpecError: fewer than two images in a set, or arrays that are no images.
    """
    return feature_distance(features(images), features(true))


def feature_distance(generated: NDArray[np.float64], true: NDArray[np.float64]) -> float:
    """`distance` computed from the features of both sets, [B, 37] each."""
    spread = np.maximum(true.std(0), _MIN_SPREAD)
    return frechet(generated / spread, true / spread)


def frechet(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The Fréchet distance between normal distributions fitted to two sets of vectors [n, D].

    Raises:
        SpecError: fewer than two vectors in a set, or vectors of different lengths.
    """
    if min(len(a), len(b)) < 2 or a.shape[1:] != b.shape[1:]:
        raise SpecError(
            f"no distance between sets of shape {list(a.shape)} and {list(b.shape)}",
            hint="each needs at least two vectors, all of the same length",
        )
    one, other = (np.cov(x, rowvar=False).reshape(x.shape[1], -1) for x in (a, b))
    values, vectors = np.linalg.eigh(one)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    # This symmetric matrix has the eigenvalues of cov_a cov_b, so their roots are real.
    shared = np.sqrt(np.clip(np.linalg.eigvalsh(root @ other @ root), 0, None)).sum()
    mean_term = np.square(a.mean(0) - b.mean(0)).sum()
    return float(max(0.0, mean_term + np.trace(one) + np.trace(other) - 2 * shared))
