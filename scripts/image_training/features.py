"""Training images of one object as a tokenizer's features, and codes of all scales made from them, some replaced."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from image_training import data
from image_training.corpus import CHUNK, TOGETHER, Chunks
from image_training.multiscale import features
from pardec.models.images.vq import to_pixels
from pardec.models.scales.tokenizer import MultiScaleVQ

NEAR = 32  # codes nearest to a residual, out of which one replaces the nearest


@dataclass(frozen=True)
class Batch:
    """Classes, and the features of a picture of each."""

    labels: Tensor  # [B] int64
    features: Tensor  # [B, C, n, n] float32


class FeatureCorpus(Chunks):
    """Pictures of classes, drawn evenly, as features before they are quantized."""

    def __init__(self, folder: Path, vq: MultiScaleVQ, *, seed: int, chunks: int, size: int = CHUNK) -> None:
        super().__init__(folder, seed=seed, chunks=chunks, size=size)
        self.vq = vq

    def batch(self, step: int, count: int) -> Batch:
        """The images that a step trains on."""
        rows = self.rows(step, count)
        return Batch(rows["labels"].long(), rows["features"].float())

    @torch.inference_mode()
    def _made(self, number: int) -> dict[str, Tensor]:
        labels, pictures = data.of_classes(random.Random(f"scales/corpus/{self.seed}/{number}"), self.size)
        device = next(self.vq.parameters()).device
        parts = []
        for start in range(0, len(pictures), TOGETHER):
            pixels = to_pixels(pictures[start : start + TOGETHER]).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                parts.append(features(self.vq, pixels).half().cpu())
        return {"labels": torch.tensor(labels, dtype=torch.uint8), "features": torch.cat(parts).contiguous()}


@torch.no_grad()
def targets_and_inputs(vq: MultiScaleVQ, goal: Tensor, share: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The targets and inputs of prediction, with a share [B] of each image's codes replaced.

    Codes of a scale are those of what the scales before it, with their replaced codes, leave of the features `goal`: a
    model learns to correct what was sampled before. Returns codes [B, L] and maps [B, L - n_0, C], the inputs of scales
    from 1 on.
    """
    total, codes, maps = torch.zeros_like(goal), [], []
    scales, rows = len(vq.scales), vq.codebook.weight
    for scale in range(scales):
        residual = vq.map_of(goal - total, scale)
        distance = rows.square().sum(1) - 2 * residual @ rows.T
        nearest = distance.argmin(-1)
        codes.append(nearest)
        if scale + 1 == scales:
            break
        near = distance.topk(min(NEAR, len(rows)), -1, largest=False).indices
        pick = torch.randint(near.shape[-1], nearest.shape, generator=rng)
        other = near.gather(-1, pick.to(near.device)[..., None])[..., 0]
        replace = torch.rand(nearest.shape, generator=rng) < share[:, None]
        total = vq.add(total, torch.where(replace.to(near.device), other, nearest), scale)
        maps.append(vq.map_of(total, scale + 1))
    return torch.cat(codes, 1), torch.cat(maps, 1)
