"""Training images of one object as a tokenizer's features: codes of all scales follow, with some replaced or none."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from image_training import data
from image_training.corpus import CHUNK, TOGETHER, Chunks
from image_training.multiscale import MultiScaleVQ, Quantizer
from pardec.models.images.vq import to_pixels

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
                parts.append(self.vq.features(pixels).half().cpu())
        return {"labels": torch.tensor(labels, dtype=torch.uint8), "features": torch.cat(parts).contiguous()}


@torch.no_grad()
def walk(quantizer: Quantizer, features: Tensor, share: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What is to be predicted, and from what, where a share [B] of each image's codes is replaced.

    Codes of a scale are those of what the scales before it, with their replaced codes, leave of the features: a model
    learns to correct what was sampled before. Returns codes [B, L] and maps [B, L - n_0, C], the inputs of scales 1 on.
    """
    total, codes, maps = torch.zeros_like(features), [], []
    scales, rows = len(quantizer.sides), quantizer.embedding.weight
    for scale in range(scales):
        residual = rearrange(quantizer.pooled(features - total, scale), "b c h w -> b (h w) c")
        distance = rows.square().sum(1) - 2 * residual @ rows.T
        nearest = distance.argmin(-1)
        codes.append(nearest)
        if scale + 1 == scales:
            break
        near = distance.topk(min(NEAR, len(rows)), -1, largest=False).indices
        pick = torch.randint(near.shape[-1], nearest.shape, generator=rng).to(near.device)
        other = near.gather(-1, pick[..., None])[..., 0]
        replace = torch.rand(nearest.shape, generator=rng) < share[:, None]
        total = total + quantizer.layer(torch.where(replace.to(near.device), other, nearest), scale)
        maps.append(map_of(quantizer, total, scale + 1))
    return torch.cat(codes, 1), torch.cat(maps, 1)


def map_of(quantizer: Quantizer, total: Tensor, scale: int) -> Tensor:
    """What is read at a scale from 1 on: the sum so far at its side, [B, side^2, C]."""
    side = quantizer.sides[scale]
    small = total if side == quantizer.sides[-1] else F.interpolate(total, size=(side, side), mode="area")
    return rearrange(small, "b c h w -> b (h w) c")
