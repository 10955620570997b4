"""How well a tokenizer preserves image contents: reconstructions of fresh images, recognized."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from image_training.data import FRESH, fresh
from pardec.images.classes import NAMES, scene
from pardec.images.drawing import draw
from pardec.images.reading import read
from pardec.images.scenes import Scene, captions, parse
from pardec.models.images.kl import KL
from pardec.models.images.vq import VQ, to_images, to_pixels

SEED = 7
TOGETHER = 25  # images at a time


@torch.inference_mode()
def reconstruction(model: VQ, count: int) -> dict[str, Any]:
    """Share of `count` fresh images of held-out captions whose reconstruction still shows what the caption says.

    Captions are repeated, with other images, where there are fewer than `count`.
    """
    wanted, pictures = _asked(count)
    used = np.zeros(model.shape.codebook_size, np.int64)
    made = []
    for start in range(0, count, TOGETHER):
        codes = model.encode(to_pixels(pictures[start : start + TOGETHER]))
        used += np.bincount(codes.flatten().numpy(), minlength=len(used))
        made.append(to_images(model.decode(codes)))
    back = np.concatenate(made)
    share = used[used > 0] / used.sum()
    return {
        "pictures": count,
        "right": _right(back, wanted),
        "originals_right": _right(pictures, wanted),
        "error": _error(back, pictures),
        "codes_used": int((used > 0).sum()),
        "code_entropy_nats": round(float(-(share * np.log(share)).sum()), 3),
    }


@torch.inference_mode()
def kept(model: KL, count: int) -> dict[str, Any]:
    """Like `reconstruction`, for an autoencoder: from the means of the latents, and from samples of them."""
    wanted, pictures = _asked(count)
    rng = torch.Generator().manual_seed(SEED)
    from_mean, from_sample, deviations = [], [], []
    for start in range(0, count, TOGETHER):
        found = model.encode(to_pixels(pictures[start : start + TOGETHER]))
        from_mean.append(to_images(model.decode(found.mean)))
        from_sample.append(to_images(model.decode(found.sample(torch.randn(found.mean.shape, generator=rng)))))
        deviations.append(found.deviation.mean((0, 1, 2)))
    back, sampled = np.concatenate(from_mean), np.concatenate(from_sample)
    return {
        "pictures": count,
        "right": _right(back, wanted),
        "right_sampled": _right(sampled, wanted),
        "originals_right": _right(pictures, wanted),
        "error": _error(back, pictures),
        "deviations": [round(float(value), 3) for value in torch.stack(deviations).mean(0)],
    }


def _asked(count: int) -> tuple[list[Scene], NDArray[np.uint8]]:
    """Scenes, in their canonical form, and their images."""
    held = captions("heldout", min(count, 500), SEED)
    wanted = [held[i % len(held)] for i in range(count)]
    return [parse(caption).canonical() for caption in wanted], fresh(wanted, SEED)


def fresh_of_classes(count: int) -> tuple[list[int], NDArray[np.uint8]]:
    """Classes in turn, and a picture of each that no training step can have seen."""
    rng, labels = random.Random(SEED), [row % len(NAMES) for row in range(count)]
    seeds = [FRESH + SEED * 1_000_003 + row for row in range(count)]
    return labels, draw([scene(label, rng) for label in labels], seeds)


def _right(pictures: NDArray[np.uint8], scenes: list[Scene]) -> float:
    """Share of the images that are recognized as their scenes."""
    return sum(seen.scene() == scene for seen, scene in zip(read(pictures), scenes, strict=True)) / len(scenes)


def _error(back: NDArray[np.uint8], pictures: NDArray[np.uint8]) -> float:
    """Mean absolute error, in levels of 255."""
    return round(float(np.abs(back.astype(np.float32) - pictures).mean()), 2)
