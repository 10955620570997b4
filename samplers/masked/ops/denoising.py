"""One step of DiffusionGemma's decoding: the positions that are kept, their tokens, and whether the canvas is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import download, upload

if TYPE_CHECKING:
    from ..canvas import Canvas
    from ..contracts import Proposal


@dataclass
class DenoisingState:
    """A stage's state of each row's canvas."""

    begun: np.ndarray  # [B] the clock when the canvas was entered
    argmax: Tensor  # [B, W] int64: the previous step's argmax, -1 before the first step

    @classmethod
    def of(cls, canvas: Canvas) -> DenoisingState:
        """The state before the first step."""
        return cls(np.zeros_like(canvas.step), torch.full_like(canvas.window, -1))


@dataclass(frozen=True)
class Denoising:
    """The rule with its bounds; see `denoise`."""

    gamma: float
    confidence: float
    steps: int

    def decide(self, proposal: Proposal, canvas: Canvas, state: DenoisingState) -> tuple[Tensor, Tensor, np.ndarray]:
        """Kept positions [B, W] bool, tokens [B, W], and rows [B] whose canvas is done: all kept, with the argmax."""
        block_started = upload(canvas.block_started, canvas.window.device)[:, None]
        state.begun = np.where(canvas.block_started, canvas.step, state.begun)
        before, inside = state.argmax.masked_fill(block_started, -1), canvas.window < canvas.length
        state.argmax = argmax = proposal.evidence.distribution.greedy[0]
        entropy = proposal.evidence.filtered.confidence.entropy
        stable = ((argmax == before) | ~inside).all(1)
        sure = entropy.masked_fill(~inside, 0).sum(1) / inside.sum(1) < self.confidence
        last = upload(canvas.step - state.begun + 1 >= self.steps, stable.device)
        over = ((stable & sure) | last)[:, None]
        ranked, order = entropy.masked_fill(~inside, torch.inf).sort(dim=1, stable=True)
        bound = torch.zeros_like(inside).scatter_(1, order, ranked.cumsum(1) - ranked <= self.gamma) & inside
        return bound | (over & inside), torch.where(over, argmax, proposal.tokens), download(over[:, 0])
