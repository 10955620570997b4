"""Training of a draft model of several scales on images of the large model, towards its distributions.

Collaborative Decoding Makes Visual Auto-Regressive Modeling Efficient, https://arxiv.org/abs/2411.17787
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pardec
from image_training.corpus import Chunks
from image_training.export_var import DEFAULTS, loaded
from image_training.options import Options
from image_training.var import LARGE, LATE, TOKENIZER, VARRun
from pardec.images.classes import NAMES
from pardec.models.files.catalog import EMBEDDED
from pardec.models.scales.contracts import MultiScaleQuantizer, ScaleModel
from pardec.samplers import registry
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.samplers.scales.loop import decode

EARLY = 0.1  # the weight in the loss of codes of the scales before LATE
TOGETHER = 128  # images drawn at a time
IMAGES = 1024  # images of a chunk


class TeacherCorpus(Chunks):
    """Images of a large model, with its logits; in every other chunk a refiner drew the late scales, if there is one.

    There the draft learns what the large model would predict after codes that the refiner drew.
    """

    def __init__(
        self,
        folder: Path,
        large: Path,
        refiner: Path | None,
        tokenizer: Path,
        *,
        seed: int,
        chunks: int,
        size: int = IMAGES,
    ) -> None:
        super().__init__(folder, seed=seed, chunks=chunks, size=size)
        self.large, self.refiner, self.tokenizer = large, refiner, str(tokenizer)

    def batch(self, step: int, count: int) -> dict[str, Tensor]:
        """`labels` [B], `codes` [B, L] and `logits` [B, 2, L, V], of the class and of none."""
        rows = self.rows(step, count)
        return {"labels": rows["labels"].long(), "codes": rows["codes"].long(), "logits": rows["logits"].float()}

    @torch.inference_mode()
    def _made(self, number: int) -> dict[str, Tensor]:
        model = pardec.load(self.large, device="cpu", decoder=self.tokenizer).network
        refiner = None
        if self.refiner is not None and number % 2:
            refiner = pardec.load(self.refiner, device="cpu", decoder=self.tokenizer).network
        sampler = registry.resolve("sequential" if refiner is None else f"code:refiner=given,steps={LATE}", "scales")
        network = loaded(self.large)
        labels = [(number * self.size + row) % len(NAMES) for row in range(self.size)]
        codes, logits = [], []
        for start in range(0, self.size, TOGETHER):
            some = labels[start : start + TOGETHER]
            seeds = [(self.seed + 1) * 1_000_003 + number * self.size + start + row for row in range(len(some))]
            request = ScaleRequest(tuple(some), Keyed(seeds), **_drawing(model), refiner=refiner)
            *_, finished = decode(model, sampler, request, steps=False)
            drawn = torch.from_numpy(finished.tokens)
            codes.append(drawn)
            logits.append(both_logits(network, model.quantizer, torch.tensor(some), drawn).half())
        return {
            "labels": torch.tensor(labels, dtype=torch.uint8),
            "codes": torch.cat(codes).to(torch.int16),
            "logits": torch.cat(logits),
        }


def _drawing(model: ScaleModel) -> dict[str, Any]:
    """The settings that images are drawn with, as arguments of a request."""
    return {**DEFAULTS, "top_k": min(int(DEFAULTS["top_k"]), model.quantizer.vocab)}


def both_logits(network: torch.nn.Module, vq: MultiScaleQuantizer, labels: Tensor, codes: Tensor) -> Tensor:
    """Logits [B, 2, L, V] of codes [B, L], of their class and of none."""
    maps = inputs(vq, codes)
    both = torch.cat((labels, torch.full_like(labels, len(NAMES))))
    with torch.autocast(codes.device.type, torch.bfloat16):
        logits: Tensor = network(both, torch.cat((maps, maps))).float()
    return torch.stack(logits.chunk(2), 1)


@torch.no_grad()
def inputs(vq: MultiScaleQuantizer, codes: Tensor) -> Tensor:
    """The inputs of the scales from 1 on, [B, L - n_0, C], from codes [B, L]."""
    total, maps, starts = vq.start(len(codes)), [], vq.scales.starts
    for scale in range(len(vq.scales) - 1):
        total = vq.add(total, codes[:, starts[scale] : starts[scale + 1]], scale)
        maps.append(vq.map_of(total, scale + 1))
    return torch.cat(maps, 1)


class ScaleDraftRun(VARRun):
    """Trains a draft model: cross entropy to the large model's distributions, of the class, of none, and guided."""

    def __init__(self, options: Options) -> None:
        options.tokenizer = options.tokenizer or EMBEDDED / TOKENIZER
        super().__init__(options)
        sides = self.vq.scales.sides
        level = torch.repeat_interleave(torch.arange(len(sides)), torch.tensor(self.vq.scales.sizes))
        weight = torch.where(level < min(LATE, len(sides) - 1), EARLY, 1.0)
        self.weight = (weight / weight.mean()).to(self.device)  # [L], 1 on average
        self.strength = (DEFAULTS["cfg"] * level / (len(sides) - 1)).to(self.device)[:, None]  # [L, 1]

    def make_corpus(self, folder: Path) -> Chunks:
        large, refiner = self.o.teacher or LARGE, self.o.refiner
        return TeacherCorpus(folder, large, refiner, self.tokenizer, seed=self.o.seed, chunks=self.o.chunks)

    def loss_of(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss, and its part from the divergence to the large model's guided distributions, in nats."""
        batch = {name: value.to(self.device) for name, value in batch.items()}
        ours = both_logits(self.forward, self.vq, batch["labels"], batch["codes"])
        goals, own = (torch.cat((of, self.guided(of)), 1) for of in (batch["logits"], ours))  # [B, 3, L, V]
        goals = goals.log_softmax(-1)
        apart = F.kl_div(own.log_softmax(-1), goals, reduction="none", log_target=True).sum(-1)
        return (self.weight * apart).mean(), (self.weight * apart[:, 2]).mean().detach()

    def guided(self, logits: Tensor) -> Tensor:
        """Guided logits [B, 1, L, V] from [B, 2, L, V]."""
        return (1 + self.strength) * logits[:, :1] - self.strength * logits[:, 1:]

    def learned(self) -> dict[str, Any]:
        how = f"{self.o.chunks * self.corpus.size} images that the large model drew"
        if self.o.refiner is not None:
            how += f"; in half of them, scales from {LATE} on by the draft of the run before"
        return {
            "data": how,
            "loss": "divergence from the large model's distributions of the class, of none, and guided; codes before "
            f"scale {LATE} (from 0) count {EARLY:g}",
        }
