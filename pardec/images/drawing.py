"""Draws scenes: shapes at random places within what the caption says, on a textured ground with mild noise.

An image is a function of its scene and its seed alone, whatever it is drawn together with. Thousands a second on one
core. Letters: B images, S pixels along a side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pardec.models.errors import SpecError

from .scenes import BACKGROUNDS, COLOURS, PLACES, RELATIONS, SHAPES, Scene
from .shapes import EXTENT, RADII, SIDE, Array, coverage

MARGIN = 1.5  # pixels between a shape and the edge
GAP = 2.5  # pixels between two shapes, at least
ASIDE = 3.0  # pixels by which a pair is moved across its axis, at most, ...
APART = 2.0  # ... and each of them on its own
MIDDLE = 2.5  # pixels by which what is in the middle is off it, at most
INNER = 14.5  # pixels between the edge and the centre of what is at that edge, at most
SHADE = 10.0  # levels by which a colour differs from its name's, at most
TEXTURE = (6.0, 13.0)  # levels, amplitude
NOISE = (2.0, 4.5)  # levels, standard deviation
_CELLS = 7  # of the blotches, a side
_TOGETHER = 32  # images drawn at once: so many stay in a core's cache


def draw(scenes: Sequence[Scene], seeds: Sequence[int]) -> NDArray[np.uint8]:
    """Images [B, S, S, 3] of 0..255, one a scene and seed.

    Raises:
        SpecError: not as many seeds as scenes, or a negative one.
    """
    if len(scenes) != len(seeds):
        raise SpecError(f"{len(scenes)} scenes but {len(seeds)} seeds", hint="give one seed an image")
    if min(seeds, default=0) < 0:
        raise SpecError(f"seeds must not be negative, got {min(seeds)}")
    out = np.empty((len(scenes), SIDE, SIDE, 3), np.uint8)
    for start in range(0, len(scenes), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        out[some] = _render_batch(scenes[some], seeds[some])
    return out


def _render_batch(scenes: Sequence[Scene], seeds: Sequence[int]) -> NDArray[np.uint8]:
    count = len(scenes)
    noise = np.empty((count, SIDE, SIDE, 3), np.float32)
    u = np.empty((count, 32), np.float32)
    blotches = np.empty((count, _CELLS, _CELLS), np.float32)
    for row, seed in enumerate(seeds):
        rng = np.random.Generator(np.random.SFC64(seed))
        rng.random(dtype=np.float32, out=u[row])
        rng.random(dtype=np.float32, out=blotches[row])
        rng.standard_normal(dtype=np.float32, out=noise[row])
    ground = np.array([BACKGROUNDS[scene.background] for scene in scenes], np.float32).reshape(count, 1, 1, 3)
    level = TEXTURE[0] + (TEXTURE[1] - TEXTURE[0]) * u[:, 0, None, None]
    canvas = ground + (level * _texture(u[:, 1:5], blotches))[..., None]
    places = [_where(scene, u[row]) for row, scene in enumerate(scenes)]
    for index in range(2):
        for shape in SHAPES:
            these = [
                r for r, scene in enumerate(scenes) if [t.shape for t in scene.things[index : index + 1]] == [shape]
            ]
            if these:
                at = np.array([places[row][index] for row in these], np.float32)  # [b, 3]
                covered = coverage(shape, at[:, 0], at[:, 1], at[:, 2])[..., None]
                colour = np.array([COLOURS[scenes[row].things[index].colour] for row in these], np.float32)
                colour += SHADE * (2 * u[these, 5 + 3 * index : 8 + 3 * index] - 1)
                canvas[these] += covered * (colour[:, None, None] - canvas[these])
    noise *= (NOISE[0] + (NOISE[1] - NOISE[0]) * u[:, 11])[:, None, None, None]
    canvas += noise
    canvas += np.float32(0.5)  # what astype cuts off is rounded so
    found: NDArray[np.uint8] = np.clip(canvas, 0, 255, out=canvas).astype(np.uint8)
    return found


def _texture(u: Array, blotches: Array) -> Array:
    """Stripes, checks, a slope or blotches in [-1, 1], [B, S, S]; `u` [B, 4] chooses."""
    at = np.linspace(-1, 1, SIDE, dtype=np.float32)
    angle = np.pi * u[:, 1, None, None]
    along = np.cos(angle) * at[None, None, :] + np.sin(angle) * at[None, :, None]
    across = np.cos(angle) * at[None, :, None] - np.sin(angle) * at[None, None, :]
    waves = 2 * np.pi * (1.5 + 3 * u[:, 2, None, None])
    phase = 2 * np.pi * u[:, 3, None, None]
    stripes = np.sin(waves * along + phase)
    checks = stripes * np.sin(waves * across + phase)
    slope = along / 1.42
    kind = (4 * u[:, 0]).astype(np.int64)[:, None, None]
    found: Array = np.choose(kind, [stripes, checks, slope, _smooth(blotches)]).astype(np.float32)
    return found


def _smooth(cells: Array) -> Array:
    """Cells [B, n, n] in [0, 1] as a surface [B, S, S] in [-1, 1], linear between them."""
    at = np.linspace(0, _CELLS - 1, SIDE, dtype=np.float32)
    weight = np.clip(1 - np.abs(at[:, None] - np.arange(_CELLS, dtype=np.float32)), 0, 1)  # [S, n]
    found: Array = weight @ (2 * cells - 1) @ weight.T
    return found


def _where(scene: Scene, u: Array) -> list[tuple[float, float, float]]:
    """Middle and radius of each thing, in pixels."""
    radii = [low + (high - low) * u[12 + i] for i, (low, high) in enumerate(RADII[t.size] for t in scene.things)]
    half = [tuple(e * r for e in EXTENT[t.shape]) for t, r in zip(scene.things, radii, strict=True)]
    if len(scene.things) == 1:
        sides = PLACES[scene.place]
        x, y = (_beside(sides[axis], half[0][axis], u[14 + axis]) for axis in (0, 1))
        return [(x, y, radii[0])]
    step = RELATIONS[scene.place]
    axis = 0 if step[0] else 1
    order = (0, 1) if sum(step) < 0 else (1, 0)
    slack = SIDE - 2 * MARGIN - GAP - 2 * (half[0][axis] + half[1][axis])
    low, high = sorted((float(u[14]), float(u[15])))
    main = [0.0, 0.0]
    main[order[0]] = MARGIN + low * slack + half[order[0]][axis]
    main[order[1]] = SIDE - MARGIN - (1 - high) * slack - half[order[1]][axis]
    shared = SIDE / 2 + ASIDE * (2 * u[16] - 1)
    cross = [shared + APART * (2 * u[17 + i] - 1) for i in (0, 1)]
    places = [(main[i], cross[i]) if axis == 0 else (cross[i], main[i]) for i in (0, 1)]
    return [(*place, radius) for place, radius in zip(places, radii, strict=True)]


def _beside(side: int, half: float, u: float) -> float:
    """A coordinate at the low edge (-1), in the middle (0) or at the high edge (1)."""
    if side == 0:
        return SIDE / 2 + MIDDLE * (2 * u - 1)
    inner = MARGIN + half + (INNER - MARGIN - half) * u
    return inner if side < 0 else SIDE - inner
