"""Draws scenes: shapes at random positions that match the caption, on a textured background with mild noise.

An image depends only on its scene and seed, not on the other images of the batch. One core draws thousands per second.
Letters: B images, S pixels along a side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .scenes import BACKGROUNDS, COLOURS, POSITIONS, RELATIONS, SHAPES, Scene

MARGIN = 1.5  # pixels between a shape and the edge
GAP = 2.5  # pixels between two shapes, at least
ASIDE = 3.0  # pixels by which a pair of shapes is shifted across its axis, at most
APART = 2.0  # pixels by which each shape of a pair is shifted as well, at most
MIDDLE = 2.5  # pixels from the middle of the image to a shape "in the middle", at most
INNER = 14.5  # pixels between an edge and the centre of a shape at that edge, at most
SHADE = 10.0  # levels by which each channel differs from the named colour, at most
TEXTURE = (6.0, 13.0)  # levels, amplitude
NOISE = (2.0, 4.5)  # levels, standard deviation
_BLOTCHES = 7  # random values per side of the blotches
_BATCH = 32  # images drawn at once: they fit in a core's cache


def draw(scenes: Sequence[Scene], seeds: Sequence[int]) -> NDArray[np.uint8]:
    """Images [B, S, S, 3] of 0..255, one per scene and seed.

    Raises:
        SpecError: not as many seeds as scenes, or a negative seed.
    """
    if len(scenes) != len(seeds):
        raise SpecError(f"{len(scenes)} scenes but {len(seeds)} seeds", hint="give one seed per image")
    if min(seeds, default=0) < 0:
        raise SpecError(f"seeds must not be negative, got {min(seeds)}")
    out = np.empty((len(scenes), SIDE, SIDE, 3), np.uint8)
    for start in range(0, len(scenes), _BATCH):
        batch = slice(start, start + _BATCH)
        out[batch] = _render_batch(scenes[batch], seeds[batch])
    return out


def _render_batch(scenes: Sequence[Scene], seeds: Sequence[int]) -> NDArray[np.uint8]:
    count = len(scenes)
    noise = np.empty((count, SIDE, SIDE, 3), np.float32)
    u = np.empty((count, 32), np.float32)
    blotches = np.empty((count, _BLOTCHES, _BLOTCHES), np.float32)
    for row, seed in enumerate(seeds):
        rng = np.random.Generator(np.random.SFC64(seed))
        rng.random(dtype=np.float32, out=u[row])
        rng.random(dtype=np.float32, out=blotches[row])
        rng.standard_normal(dtype=np.float32, out=noise[row])
    background = np.array([BACKGROUNDS[scene.background] for scene in scenes], np.float32).reshape(count, 1, 1, 3)
    level = TEXTURE[0] + (TEXTURE[1] - TEXTURE[0]) * u[:, 0, None, None]
    canvas = background + (level * _texture(u[:, 1:5], blotches))[..., None]
    layouts = [_layout(scene, u[row]) for row, scene in enumerate(scenes)]
    for index in range(2):
        for shape in SHAPES:
            rows = [
                r for r, scene in enumerate(scenes) if [t.shape for t in scene.things[index : index + 1]] == [shape]
            ]
            if rows:
                x, y, radius = np.array([layouts[row][index] for row in rows], np.float32).T  # [b] each
                covered = coverage(shape, x, y, radius)[..., None]
                colour = np.array([COLOURS[scenes[row].things[index].colour] for row in rows], np.float32)
                colour += SHADE * (2 * u[rows, 5 + 3 * index : 8 + 3 * index] - 1)
                canvas[rows] += covered * (colour[:, None, None] - canvas[rows])
    noise *= (NOISE[0] + (NOISE[1] - NOISE[0]) * u[:, 11])[:, None, None, None]
    canvas += noise
    canvas += np.float32(0.5)  # so that the truncation of astype rounds
    images: NDArray[np.uint8] = np.clip(canvas, 0, 255, out=canvas).astype(np.uint8)
    return images


def _texture(u: Array, blotches: Array) -> Array:
    """Stripes, checks, a slope or blotches, [B, S, S] in [-1, 1], chosen by the uniforms `u` [B, 4]."""
    axis = np.linspace(-1, 1, SIDE, dtype=np.float32)
    angle = np.pi * u[:, 1, None, None]
    along = np.cos(angle) * axis[None, None, :] + np.sin(angle) * axis[None, :, None]
    across = np.cos(angle) * axis[None, :, None] - np.sin(angle) * axis[None, None, :]
    waves = 2 * np.pi * (1.5 + 3 * u[:, 2, None, None])
    phase = 2 * np.pi * u[:, 3, None, None]
    stripes = np.sin(waves * along + phase)
    checks = stripes * np.sin(waves * across + phase)
    slope = along / 1.42
    kind = (4 * u[:, 0]).astype(np.int64)[:, None, None]
    texture: Array = np.choose(kind, [stripes, checks, slope, _smooth(blotches)]).astype(np.float32)
    return texture


def _smooth(values: Array) -> Array:
    """Values [B, n, n] in [0, 1], bilinearly interpolated to [B, S, S] in [-1, 1]."""
    position = np.linspace(0, _BLOTCHES - 1, SIDE, dtype=np.float32)
    weight = np.clip(1 - np.abs(position[:, None] - np.arange(_BLOTCHES, dtype=np.float32)), 0, 1)  # [S, n]
    surface: Array = weight @ (2 * values - 1) @ weight.T
    return surface


def _layout(scene: Scene, u: Array) -> list[tuple[float, float, float]]:
    """Centre and radius of each shape, in pixels."""
    radii = [low + (high - low) * u[12 + i] for i, (low, high) in enumerate(RADII[t.size] for t in scene.things)]
    half = [tuple(e * r for e in EXTENT[t.shape]) for t, r in zip(scene.things, radii, strict=True)]
    if len(scene.things) == 1:
        sides = POSITIONS[scene.position]
        x, y = (_coordinate(sides[axis], half[0][axis], u[14 + axis]) for axis in (0, 1))
        return [(x, y, radii[0])]
    step = RELATIONS[scene.position]
    axis = 0 if step[0] else 1
    order = (0, 1) if sum(step) < 0 else (1, 0)
    slack = SIDE - 2 * MARGIN - GAP - 2 * (half[0][axis] + half[1][axis])
    low, high = sorted((float(u[14]), float(u[15])))
    main = [0.0, 0.0]
    main[order[0]] = MARGIN + low * slack + half[order[0]][axis]
    main[order[1]] = SIDE - MARGIN - (1 - high) * slack - half[order[1]][axis]
    shared = SIDE / 2 + ASIDE * (2 * u[16] - 1)
    cross = [shared + APART * (2 * u[17 + i] - 1) for i in (0, 1)]
    centres = [(main[i], cross[i]) if axis == 0 else (cross[i], main[i]) for i in (0, 1)]
    return [(*centre, radius) for centre, radius in zip(centres, radii, strict=True)]


def _coordinate(side: int, half: float, u: float) -> float:
    """A coordinate near the low edge (side -1), in the middle (0) or near the high edge (1)."""
    if side == 0:
        return SIDE / 2 + MIDDLE * (2 * u - 1)
    inner = MARGIN + half + (INNER - MARGIN - half) * u
    return inner if side < 0 else SIDE - inner


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
