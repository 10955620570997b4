"""The outlines of the shapes, for drawing and detection. Letters: B images, S pixels along a side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SIDE = 48  # pixels
RADII = {"small": (5.8, 6.6), "large": (9.0, 10.0)}  # pixels
BETWEEN = 7.8  # radius between small and large
# Half width and half height of a shape in radii, such that shapes of one size have similar areas.
EXTENT = {"circle": (1.0, 1.0), "square": (0.9, 0.9), "triangle": (1.04, 0.9)}
AREA = {"circle": float(np.pi), "square": 4 * 0.9 * 0.9, "triangle": 2 * 1.04 * 0.9}  # in squared radii
CENTROID = {"circle": 0.0, "square": 0.0, "triangle": 0.9 / 3}  # below the bounding box's centre, in radii


def coverage(shape: str, x: Array, y: Array, radius: Array) -> Array:
    """How much of each pixel shapes cover, [B, S, S] in [0, 1].

    `x`, `y` (centre of the bounding box, in pixels from the upper left corner) and `radius` are [B].
    """
    pixel = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
    dx = np.abs(pixel[None, None, :] - x[:, None, None])
    dy = pixel[None, :, None] - y[:, None, None]
    r = radius[:, None, None]
    if shape == "circle":
        outside = np.hypot(dx, dy) - r
    elif shape == "square":
        outside = np.maximum(dx, np.abs(dy)) - EXTENT["square"][0] * r
    else:
        wide, high = EXTENT["triangle"]
        flank = (2 * high * dx - wide * (dy + high * r)) / np.float32(np.hypot(2 * high, wide))
        outside = np.maximum(flank, dy - high * r)
    covered: Array = np.clip(np.float32(0.5) - outside, 0, 1).astype(np.float32)
    return covered
