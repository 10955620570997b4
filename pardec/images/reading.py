"""Detects the shapes of an image, their colours, sizes and positions, and its background, without a network.

A connected component of pixels near a named colour is a shape. Its kind is the one whose outline, with the same area
and centroid, overlaps the component most. Letters: S pixels along a side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .drawing import AREA, BETWEEN, CENTROID, SIDE, Array, coverage
from .scenes import BACKGROUNDS, COLOURS, POSITIONS, RELATIONS, Scene, Thing

NEAR = 75.0  # levels within which a pixel has a named colour
FAINT = 0.15  # share of a shape's colour below which a pixel counts as background
CORE = 10  # pixels of a shape after erosion by one pixel, at least
OVERLAP = 0.72  # least intersection over union of a component and its best outline
ASIDE = 6.5  # pixels from the middle of the image beyond which a shape is at a side
_COLOUR_NAMES = tuple(COLOURS)
_BACKGROUND_NAMES = tuple(BACKGROUNDS)
_PALETTE = np.array([*COLOURS.values(), *BACKGROUNDS.values()], np.float32)
_POSITION_OF = {sides: position for position, sides in POSITIONS.items()}


@dataclass(frozen=True)
class DetectedShape:
    """One shape in an image. `shape` is None where the outline fits no known shape."""

    colour: str
    shape: str | None
    radius: float  # pixels
    x: float  # centre of the bounding box, in pixels from the upper left corner
    y: float
    overlap: float  # with the best outline, intersection over union

    @property
    def size(self) -> str:
        return "large" if self.radius > BETWEEN else "small"

    @property
    def position(self) -> str:
        """The part of the image that it lies in, one of POSITIONS."""
        column, row = (int(np.sign(shift) * (abs(shift) > ASIDE)) for shift in (self.x - SIDE / 2, self.y - SIDE / 2))
        return _POSITION_OF[column, row]


@dataclass(frozen=True)
class Reading:
    """The content of an image: its shapes, largest first, and its background (None if it has no named colour)."""

    things: tuple[DetectedShape, ...]
    background: str | None

    def scene(self) -> Scene | None:
        """The scene in canonical form; None if no caption describes the image."""
        shapes = [thing.shape for thing in self.things]
        if self.background is None or None in shapes or not 1 <= len(shapes) <= 2:
            return None
        things = tuple(Thing(thing.size, thing.colour, thing.shape) for thing in self.things if thing.shape)
        position = self.things[0].position if len(things) == 1 else relation(*self.things)
        return Scene(things, position, self.background).canonical()


def relation(first: DetectedShape, second: DetectedShape) -> str:
    """The relation of the first shape to the second, one of RELATIONS."""
    dx, dy = first.x - second.x, first.y - second.y
    step = (int(np.sign(dx)), 0) if abs(dx) >= abs(dy) else (0, int(np.sign(dy)))
    return next((name for name, direction in RELATIONS.items() if direction == step), "left of")


def read(images: NDArray[np.uint8]) -> list[Reading]:
    """Read images [B, S, S, 3] of 0..255.

    Raises:
        SpecError: arrays of another shape or type.
    """
    if images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, 3) or images.dtype != np.uint8:
        raise SpecError(
            f"cannot read images of shape {list(images.shape)} and type {images.dtype}",
            hint=f"images are [count, {SIDE}, {SIDE}, 3] of uint8",
        )
    return [_read(image.astype(np.float32)) for image in images]


def _read(image: Array) -> Reading:
    ground = np.median(_rim(image), 0)  # colour of the background
    distance = np.linalg.norm(image[:, :, None] - _PALETTE, axis=-1)  # [S, S, colours and backgrounds]
    named = np.linalg.norm(_PALETTE[len(_COLOUR_NAMES) :] - ground, axis=-1)
    background = _BACKGROUND_NAMES[int(named.argmin())] if named.min() < NEAR / 2 else None
    off_ground = np.linalg.norm(image - ground, axis=-1)
    distance[..., len(_COLOUR_NAMES) :] = off_ground[..., None]
    nearest = distance.argmin(-1)
    nearest[distance.min(-1) > NEAR] = len(_COLOUR_NAMES)
    components = [(index, part) for index in range(len(_COLOUR_NAMES)) for part in _components(nearest == index)]
    things = [
        _detect(_COLOUR_NAMES[index], part, [other for _, other in components if other is not part], image, ground)
        for index, part in components
    ]
    return Reading(tuple(sorted(things, key=lambda thing: -thing.radius)), background)


def _rim(image: Array) -> Array:
    """The outermost pixels, [n, 3]."""
    inner = np.zeros((SIDE, SIDE), bool)
    inner[1:-1, 1:-1] = True
    rim: Array = image[~inner]
    return rim


def _components(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """The connected components of a mask [S, S], without thin lines and specks."""
    core = _erode(mask)
    if core.sum() < CORE:
        return []
    label = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(label, 1)
        around = [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
        spread = np.where(mask, np.maximum.reduce([label, *around]), 0)
        if (spread == label).all():
            break
        label = spread
    components = (label == number for number in np.unique(label[core]))
    return [part for part in components if (part & core).sum() >= CORE]


def _erode(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a mask whose four neighbours are also in it."""
    padded = np.pad(mask, 1)
    eroded: NDArray[np.bool_] = mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return eroded


def _dilate(mask: NDArray[np.bool_], times: int) -> NDArray[np.bool_]:
    for _ in range(times):
        mask = ~_erode(np.pad(~mask, 1, constant_values=True))[1:-1, 1:-1]
    return mask


def _detect(
    colour: str, part: NDArray[np.bool_], others: Iterable[NDArray[np.bool_]], image: Array, ground: Array
) -> DetectedShape:
    """The shape that fits one component best."""
    inside = np.median(image[_erode(part)], 0)
    direction = inside - ground
    share = np.clip((image - ground) @ direction / max(float(direction @ direction), 1.0), 0, 1)  # [S, S]
    share[(share < FAINT) | ~_dilate(part, 2)] = 0
    for other in others:
        share[_dilate(other, 1) & ~part] = 0
    area = float(share.sum())
    pixel = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
    x, y = float(share.sum(0) @ pixel) / area, float(share.sum(1) @ pixel) / area
    fits = []
    for shape, factor in AREA.items():
        radius = (area / factor) ** 0.5
        middle = y - CENTROID[shape] * radius
        outline = coverage(shape, *(np.array([value], np.float32) for value in (x, middle, radius)))[0]
        overlap = float(np.minimum(outline, share).sum() / np.maximum(outline, share).sum())
        fits.append((overlap, shape, radius, middle))
    overlap, best, radius, middle = max(fits)
    return DetectedShape(colour, best if overlap >= OVERLAP else None, radius, x, middle, overlap)
