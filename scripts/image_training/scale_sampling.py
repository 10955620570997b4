"""Draws from models of scales as they are trained, each forward over all scales so far, and reads the images back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from image_training.evaluate import fresh_of_classes
from image_training.features import map_of
from image_training.multiscale import MultiScaleVQ
from image_training.scale_network import ScaleNetwork
from pardec.comparison.metrics import wilson
from pardec.images.classes import NAMES, score
from pardec.images.distance import distance
from pardec.models.images.vq import to_images

SEED = 7
TOGETHER = 36  # images at a time
FIELDS = ("count", "shape", "colour", "size")


@torch.inference_mode()
def sample(
    networks: list[ScaleNetwork],
    vq: MultiScaleVQ,
    labels: Tensor,
    rng: torch.Generator,
    *,
    cfg: float,
    top_k: int,
    top_p: float,
    temperature: float,
) -> Tensor:
    """Codes [B, L] of classes [B]; scale s is drawn by `networks[s]`."""
    quantizer, count = vq.quantize, len(labels)
    null = torch.full_like(labels, len(NAMES))
    side = quantizer.sides[-1]
    total = torch.zeros(count, quantizer.embedding.weight.shape[1], side, side)
    codes: list[Tensor] = []
    maps = total.new_zeros(count, 0, total.shape[1])
    for scale, network in enumerate(networks):
        size = quantizer.sides[scale] ** 2
        weight = cfg * scale / max(1, len(networks) - 1)
        if weight:
            both = network(torch.cat((labels, null)), maps.repeat(2, 1, 1))[:, -size:]
            logits = (1 + weight) * both[:count] - weight * both[count:]
        else:
            logits = network(labels, maps)[:, -size:]
        probs = kept(logits / temperature, top_k, top_p).softmax(-1)
        drawn = torch.multinomial(probs.flatten(0, 1), 1, generator=rng).view(count, size)
        codes.append(drawn)
        total = total + quantizer.layer(drawn, scale)
        if scale + 1 < len(networks):
            maps = torch.cat((maps, map_of(quantizer, total, scale + 1)), 1)
    return torch.cat(codes, 1)


def kept(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits with -inf outside the k largest, and outside the smallest set of probability p; 0: off."""
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if 0 < top_p < 1:
        ascending, order = logits.sort(-1)
        drop = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
        drop[..., -1] = False
        logits = logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)
    return logits


def right_of(
    networks: list[ScaleNetwork], vq: MultiScaleVQ, count: int, settings: dict[str, Any], *, seed: int = SEED
) -> dict[str, Any]:
    """Shares of `count` images, classes in turn, that show their class."""
    labels = [row % len(NAMES) for row in range(count)]
    rng = torch.Generator().manual_seed(seed)
    images = []
    for start in range(0, count, TOGETHER):
        some = torch.tensor(labels[start : start + TOGETHER])
        images.append(to_images(vq.decode(sample(networks, vq, some, rng, **settings))))
    pictures = np.concatenate(images)
    scores = score(pictures, labels)
    right = float(np.mean([one.right for one in scores]))
    low, high = wilson(right, count)
    return {
        "pictures": count,
        "settings": ", ".join(f"{key} {value:g}" for key, value in settings.items()),
        "forwards": float(len(networks)),
        "right": right,
        "right_from": low,
        "right_to": high,
        **{of: round(float(np.mean([getattr(one, of) for one in scores])), 3) for of in FIELDS},
        "distance": round(distance(pictures, fresh_of_classes(count)[1]), 2) if count > 1 else None,
    }
