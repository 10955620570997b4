"""Training images of one object as latents: rendered and encoded once, in chunks saved beside the run's state."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from image_training import data
from image_training.corpus import CHUNK, TOGETHER, Chunks
from pardec.models.images.kl import KL, Latents
from pardec.models.images.vq import to_pixels


@dataclass(frozen=True)
class Batch:
    """Classes, and the distributions of the vectors of one picture per class."""

    labels: Tensor  # [B] int64
    latents: Latents  # [B, S, d] each


class LatentCorpus(Chunks):
    """Pictures of evenly drawn classes, as distributions of an autoencoder's vectors."""

    def __init__(self, folder: Path, kl: KL, *, seed: int, chunks: int, size: int = CHUNK) -> None:
        super().__init__(folder, seed=seed, chunks=chunks, size=size)
        self.kl = kl

    def batch(self, step: int, count: int) -> Batch:
        """The images that a step trains on."""
        rows = self.rows(step, count)
        return Batch(rows["labels"].long(), Latents(rows["mean"].float(), rows["deviation"].float()))

    @torch.inference_mode()
    def _made(self, number: int) -> dict[str, Tensor]:
        rng = random.Random(f"classes/{self.seed}/{number}")
        labels, pictures = data.of_classes(rng, self.size)
        found = []
        device = next(self.kl.parameters()).device
        for start in range(0, len(pictures), TOGETHER):
            pixels = to_pixels(pictures[start : start + TOGETHER]).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                found.append(self.kl.encode(pixels))
        parts = {name: torch.cat([getattr(part, name) for part in found]) for name in ("mean", "deviation")}
        rows = {name: value.flatten(1, 2).half().cpu().contiguous() for name, value in parts.items()}
        return {"labels": torch.tensor(labels, dtype=torch.uint8), **rows}
