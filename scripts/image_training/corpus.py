"""Training images as codes: rendered and encoded once, in chunks saved beside the run's state."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from image_training import data, words
from pardec.images.scenes import BACKGROUNDS, COLOURS, Scene
from pardec.models.images.vq import VQ, to_pixels

CHUNK = 2048  # images
TOGETHER = 64  # encoded at a time
CHUNK_SEEDS = 1 << 20  # first seed of chunks; the steps of the tokenizer's own training stay below it
GROUND = len(COLOURS)  # the value of a cell that shows no thing


@dataclass(frozen=True)
class Batch:
    """Captions as words and images as codes."""

    captions: Tensor  # [B, 16] int64
    codes: Tensor  # [B, cells] int64
    said: Tensor  # [B, 8] int64: what the captions say, see words.attributes
    shown: Tensor  # [B, cells] int64: the colour of the thing that each cell shows, or GROUND


class Chunks(ABC):
    """`chunks` times `size` images, in a new order each pass; a chunk is made once, as a file."""

    def __init__(self, folder: Path, *, seed: int, chunks: int, size: int = CHUNK) -> None:
        self.folder, self.seed, self.chunks, self.size = folder, seed, chunks, size
        folder.mkdir(parents=True, exist_ok=True)
        self.held: tuple[int, dict[str, Tensor]] = (-1, {})

    def rows(self, step: int, count: int) -> dict[str, Tensor]:
        """The tensors of a step by name, a function of the seed and the step alone."""
        each = self.size // count
        turn, place = divmod(step, each)
        again, number = divmod(turn, self.chunks)
        order = np.random.default_rng((self.seed, again, number)).permutation(self.size)
        rows = torch.from_numpy(order[place * count : (place + 1) * count])
        return {name: held[rows] for name, held in self.chunk(number).items()}

    def chunk(self, number: int) -> dict[str, Tensor]:
        """One chunk, made if it does not exist yet."""
        if self.held[0] != number:
            file = self.folder / f"{number}.safetensors"
            if not file.exists():
                part = file.with_suffix(".part")
                save_file(self._made(number), part)
                os.replace(part, file)
            self.held = (number, load_file(file))
        return self.held[1]

    @abstractmethod
    def _made(self, number: int) -> dict[str, Tensor]:
        """A chunk's tensors by name, images first."""


class Corpus(Chunks):
    """Pictures of the train split as codes of a tokenizer."""

    def __init__(self, folder: Path, vq: VQ, *, seed: int, chunks: int, size: int = CHUNK) -> None:
        super().__init__(folder, seed=seed, chunks=chunks, size=size)
        self.vq = vq

    def batch(self, step: int, count: int) -> Batch:
        """The images that a step trains on."""
        rows = self.rows(step, count)
        captions, codes, shown = (rows[name].long() for name in ("captions", "codes", "shown"))
        return Batch(captions, codes, words.attributes(words.read(captions)), shown)

    @torch.inference_mode()
    def _made(self, number: int) -> dict[str, Tensor]:
        scenes, pictures = data.batch(self.seed, CHUNK_SEEDS + number, self.size)
        codes = []
        device = next(self.vq.parameters()).device
        for start in range(0, len(pictures), TOGETHER):
            pixels = to_pixels(pictures[start : start + TOGETHER]).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                codes.append(self.vq.encode(pixels).cpu())
        found = torch.cat(codes).flatten(1)
        dtype = torch.uint8 if self.vq.shape.codebook_size <= 256 else torch.int16
        shown = shown_by(scenes, pictures, self.vq.shape.downsample)
        return {
            "captions": words.ids([scene.caption for scene in scenes]).to(torch.uint8),
            "codes": found.to(dtype).contiguous(),
            "shown": torch.from_numpy(shown).to(torch.uint8),
        }


def shown_by(scenes: list[Scene], pictures: NDArray[np.uint8], cell: int) -> NDArray[np.int64]:
    """[B, cells]: the thing whose colour is nearest to the mean of each cell, or GROUND."""
    side = pictures.shape[1] // cell
    means = pictures.reshape(len(pictures), side, cell, side, cell, 3).mean((2, 4)).reshape(len(pictures), -1, 3)
    names = list(COLOURS)
    out = np.empty(means.shape[:2], np.int64)
    for row, scene in enumerate(scenes):
        of = [names.index(thing.colour) for thing in scene.things]
        palette = np.array([*(COLOURS[names[i]] for i in of), BACKGROUNDS[scene.background]], np.float64)
        nearest = np.linalg.norm(means[row, :, None] - palette, axis=-1).argmin(-1)
        out[row] = np.array([*of, GROUND])[nearest]
    return out
