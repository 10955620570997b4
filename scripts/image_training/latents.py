"""Training pictures of one thing as latents: drawn and encoded once, in chunks that lie beside the run's state."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from image_training.data import FRESH
from pardec.models.vision.kl import KL, Latents
from pardec.models.vision.vq import to_pixels
from pardec.pictures.classes import NAMES, scene
from pardec.pictures.drawing import draw

CHUNK = 2048  # pictures
TOGETHER = 64  # encoded at a time


@dataclass(frozen=True)
class Batch:
    """Classes, and the laws of the vectors of a picture of each."""

    labels: Tensor  # [B] int64
    latents: Latents  # [B, S, d] each


class LatentCorpus:
    """`chunks` times CHUNK pictures, classes drawn evenly, gone through in another order each time."""

    def __init__(self, folder: Path, kl: KL, *, seed: int, chunks: int, size: int = CHUNK) -> None:
        self.folder, self.kl, self.seed, self.chunks, self.size = folder, kl, seed, chunks, size
        folder.mkdir(parents=True, exist_ok=True)
        self.held: tuple[int, dict[str, Tensor]] = (-1, {})

    def batch(self, step: int, count: int) -> Batch:
        """What a step sees: a function of the seed and the step alone."""
        each = self.size // count
        turn, place = divmod(step, each)
        again, number = divmod(turn, self.chunks)
        order = np.random.default_rng((self.seed, again, number)).permutation(self.size)
        rows = torch.from_numpy(order[place * count : (place + 1) * count])
        labels, mean, deviation = (self.chunk(number)[name][rows] for name in ("labels", "mean", "deviation"))
        return Batch(labels.long(), Latents(mean.float(), deviation.float()))

    def chunk(self, number: int) -> dict[str, Tensor]:
        """One chunk, made if it is not there yet."""
        if self.held[0] != number:
            file = self.folder / f"{number}.safetensors"
            if not file.exists():
                part = file.with_suffix(".part")
                save_file(self._made(number), part)
                os.replace(part, file)
            self.held = (number, load_file(file))
        return self.held[1]

    @torch.inference_mode()
    def _made(self, number: int) -> dict[str, Tensor]:
        rng = random.Random(f"classes/{self.seed}/{number}")
        labels = [rng.randrange(len(NAMES)) for _ in range(self.size)]
        pictures = draw([scene(label, rng) for label in labels], [rng.randrange(FRESH) for _ in labels])
        found = []
        device = next(self.kl.parameters()).device
        for start in range(0, len(pictures), TOGETHER):
            pixels = to_pixels(pictures[start : start + TOGETHER]).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                found.append(self.kl.encode(pixels))
        parts = {name: torch.cat([getattr(part, name) for part in found]) for name in ("mean", "deviation")}
        rows = {name: value.flatten(1, 2).half().cpu().contiguous() for name, value in parts.items()}
        return {"labels": torch.tensor(labels, dtype=torch.uint8), **rows}
