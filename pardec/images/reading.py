"""Reads an image back: which shapes, of which colours and sizes, where, on what, from the pixels alone.

No network: pixels near a named colour that hang together are a thing; its outline is the shape whose own coverage,
drawn with the found area and centroid, overlaps it most. Letters: S pixels along a side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .scenes import BACKGROUNDS, COLOURS, PLACES, RELATIONS, Scene, Thing
from .shapes import AREA, BETWEEN, CENTROID, SIDE, Array, coverage

NEAR = 75.0  # levels within which a pixel counts as of a colour
FAINT = 0.15  # share of a thing's colour below which a pixel counts as ground
CORE = 10  # pixels that a thing still has when its outermost are taken off, at least
OVERLAP = 0.72  # of a thing and its shape (intersection over union), at least
ASIDE = 6.5  # pixels from the middle of the image beyond which a thing is at a side
_NAMES = tuple(COLOURS)
_GROUNDS = tuple(BACKGROUNDS)
_PALETTE = np.array([*COLOURS.values(), *BACKGROUNDS.values()], np.float32)
_SIDES = {sides: place for place, sides in PLACES.items()}


@dataclass(frozen=True)
class Seen:
    """One thing in an image. `shape` is None where the outline is no shape's."""

    colour: str
    shape: str | None
    radius: float  # pixels
    x: float  # the middle of its extent, in pixels from the upper left corner
    y: float
    overlap: float  # with the best shape, intersection over union

    @property
    def size(self) -> str:
        return "large" if self.radius > BETWEEN else "small"

    @property
    def place(self) -> str:
        """The field of the image that it lies in."""
        column, row = (int(np.sign(at) * (abs(at) > ASIDE)) for at in (self.x - SIDE / 2, self.y - SIDE / 2))
        return _SIDES[column, row]


@dataclass(frozen=True)
class Reading:
    """What an image shows: the things, largest first, and the ground (None where it has no named colour)."""

    things: tuple[Seen, ...]
    background: str | None

    def scene(self) -> Scene | None:
        """The scene in its canonical form, None where the image shows none that a caption could say."""
        shapes = [seen.shape for seen in self.things]
        if self.background is None or None in shapes or not 1 <= len(shapes) <= 2:
            return None
        things = tuple(Thing(seen.size, seen.colour, seen.shape) for seen in self.things if seen.shape)
        place = self.things[0].place if len(things) == 1 else relation(*self.things)
        return Scene(things, place, self.background).canonical()


def relation(first: Seen, second: Seen) -> str:
    """Where the first lies, seen from the second."""
    dx, dy = first.x - second.x, first.y - second.y
    step = (int(np.sign(dx)), 0) if abs(dx) >= abs(dy) else (0, int(np.sign(dy)))
    return next((name for name, way in RELATIONS.items() if way == step), "left of")


def read(pictures: NDArray[np.uint8]) -> list[Reading]:
    """Read images [B, S, S, 3] of 0..255.

    Raises:
        SpecError: arrays of another shape or type.
    """
    if pictures.ndim != 4 or pictures.shape[1:] != (SIDE, SIDE, 3) or pictures.dtype != np.uint8:
        raise SpecError(
            f"cannot read images of shape {list(pictures.shape)} and type {pictures.dtype}",
            hint=f"images are [count, {SIDE}, {SIDE}, 3] of uint8",
        )
    return [_read(image.astype(np.float32)) for image in pictures]


def _read(image: Array) -> Reading:
    ground = np.median(_rim(image), 0)
    distance = np.linalg.norm(image[:, :, None] - _PALETTE, axis=-1)  # [S, S, colours and grounds]
    named = np.linalg.norm(_PALETTE[len(_NAMES) :] - ground, axis=-1)
    background = _GROUNDS[int(named.argmin())] if named.min() < NEAR / 2 else None
    off_ground = np.linalg.norm(image - ground, axis=-1)
    distance[..., len(_NAMES) :] = off_ground[..., None]
    nearest = distance.argmin(-1)
    nearest[distance.min(-1) > NEAR] = len(_NAMES)
    cores = [(index, part) for index in range(len(_NAMES)) for part in _parts(nearest == index)]
    found = [
        _seen(_NAMES[index], part, [other for _, other in cores if other is not part], image, ground)
        for index, part in cores
    ]
    return Reading(tuple(sorted(found, key=lambda seen: -seen.radius)), background)


def _rim(image: Array) -> Array:
    """The outermost pixels, [n, 3]."""
    inner = np.zeros((SIDE, SIDE), bool)
    inner[1:-1, 1:-1] = True
    found: Array = image[~inner]
    return found


def _parts(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """The parts of a mask [S, S] that hang together and are more than a rim or a speck."""
    core = _shrunk(mask)
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
    parts = (label == number for number in np.unique(label[core]))
    return [part for part in parts if (part & core).sum() >= CORE]


def _shrunk(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a mask whose four neighbours are in it too."""
    padded = np.pad(mask, 1)
    found: NDArray[np.bool_] = mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return found


def _grown(mask: NDArray[np.bool_], times: int) -> NDArray[np.bool_]:
    for _ in range(times):
        mask = ~_shrunk(np.pad(~mask, 1, constant_values=True))[1:-1, 1:-1]
    return mask


def _seen(
    colour: str, part: NDArray[np.bool_], others: Iterable[NDArray[np.bool_]], image: Array, ground: Array
) -> Seen:
    """Fit the shapes to one part."""
    inside = np.median(image[_shrunk(part)], 0)
    way = inside - ground
    share = np.clip((image - ground) @ way / max(float(way @ way), 1.0), 0, 1)  # [S, S]
    share[(share < FAINT) | ~_grown(part, 2)] = 0
    for other in others:
        share[_grown(other, 1) & ~part] = 0
    area = float(share.sum())
    at = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
    x, y = float(share.sum(0) @ at) / area, float(share.sum(1) @ at) / area
    fits = []
    for shape, factor in AREA.items():
        radius = (area / factor) ** 0.5
        middle = y - CENTROID[shape] * radius
        outline = coverage(shape, *(np.array([value], np.float32) for value in (x, middle, radius)))[0]
        overlap = float(np.minimum(outline, share).sum() / np.maximum(outline, share).sum())
        fits.append((overlap, shape, radius, middle))
    overlap, best, radius, middle = max(fits)
    return Seen(colour, best if overlap >= OVERLAP else None, radius, x, middle, overlap)
