"""Draws a whole canvas at every step, keeps jointly confident tokens, and ends when it is stable and confident.

DiffusionGemma, https://huggingface.co/google/diffusiongemma-26B-A4B-it; the bound is EB-Sampler's,
https://arxiv.org/abs/2505.24857

    kept = the positions of least entropy with sum H - max H <= gamma;  all others are random tokens again
    end  = the argmax of every position is what it was, and the mean entropy < confidence; or `steps` are over

At the end every position takes its argmax. It goes with `renoise`, which takes back what is no longer kept and names
this select where the spec has none: its parameters are the same.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import download, upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Choice, Proposal, Select


@register("denoise", checked="reference:models.families.test_diffusion_gemma.published_generate")
class Denoise(Select):
    provides = frozenset({Trait.MAY_WAIT})
    requires: ClassVar[Reasons] = {
        Trait.RENOISES: Why(
            "denoise needs 'renoise', which replaces the other tokens", "write renoise, which includes denoise"
        )
    }
    default_propose = "entropy"
    default_of = "filtered"
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"gamma": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}

    gamma: Annotated[float, "most summed entropy of the accepted positions, without the largest, in nats"] = 0.1
    confidence: Annotated[float, "mean entropy below which a stable canvas ends, in nats"] = 0.005
    steps: Annotated[int, "most steps of a block"] = 48

    def __post_init__(self) -> None:
        self.require("gamma", "confidence", least=0)
        self.require("steps", least=1)

    def start(self, canvas: Canvas) -> DenoisingState:
        return DenoisingState.of(canvas)

    def select(self, proposal: Proposal, canvas: Canvas, state: DenoisingState) -> Choice:
        rule = Denoising(self.gamma, self.confidence, self.steps)
        accepted, tokens, _ = rule.decide(proposal, canvas, state)
        return Choice(accepted & proposal.eligible, tokens)


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
        before, inside = state.argmax.masked_fill(block_started, -1), canvas.committed | canvas.eligible
        state.argmax = argmax = proposal.evidence.distribution.greedy[0]
        entropy = proposal.evidence.filtered.confidence.entropy
        stable = ((argmax == before) | ~inside).all(1)
        sure = entropy.masked_fill(~inside, 0).sum(1) / inside.sum(1) < self.confidence
        last = upload(canvas.step - state.begun + 1 >= self.steps, stable.device)
        over = ((stable & sure) | last)[:, None]
        ranked, order = entropy.masked_fill(~inside, torch.inf).sort(dim=1, stable=True)
        bound = torch.zeros_like(inside).scatter_(1, order, ranked.cumsum(1) - ranked <= self.gamma) & inside
        return bound | (over & inside), torch.where(over, argmax, proposal.tokens), download(over[:, 0])
