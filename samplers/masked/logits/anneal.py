"""Lowers the temperature from step to step within a block.

DiffusionGemma (block diffusion with adaptive stopping), https://huggingface.co/google/diffusiongemma-26B-A4B-it

    t = low + (high - low) * n / steps,  n = steps, steps - 1, ... the steps that are left, this one included

It divides the logits before anything reads them; the request's own temperature comes on top.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...ops.distribution import DenseDistribution, Distribution
from ...registry import register
from ..contracts import Canvas, Evidence, Logits


@dataclass
class State:
    """[B]: the clock when each row's block was entered."""

    begun: np.ndarray


@register(
    "anneal",
    paper="https://huggingface.co/google/diffusiongemma-26B-A4B-it",
    checked="reference:models.families.test_diffusion_gemma.published_generate",
)
class Anneal(Logits):
    high: Annotated[float, "temperature of the first step"] = 0.8
    low: Annotated[float, "temperature that the last step approaches"] = 0.4
    steps: Annotated[int, "steps of a block over which it falls; later steps keep the last temperature"] = 48

    def __post_init__(self) -> None:
        if not (self.high > 0 and self.low > 0):
            raise SpecError(f"anneal: high and low must be above 0, got high={self.high} and low={self.low}")
        self.require("steps", least=1)

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros_like(canvas.step))

    def logits(self, evidence: Evidence, canvas: Canvas, state: State) -> Distribution:
        state.begun = np.where(canvas.block_started, canvas.step, state.begun)
        left = np.maximum(self.steps - (canvas.step - state.begun), 1)
        temperatures = self.low + (self.high - self.low) * left / self.steps
        if (temperatures == temperatures[0]).all():
            return evidence.distribution.scaled(float(temperatures[0]))
        logits = evidence.logits
        scale = upload(torch.from_numpy(temperatures).to(logits.dtype), logits.device)
        return DenseDistribution(logits / scale[:, None, None])
