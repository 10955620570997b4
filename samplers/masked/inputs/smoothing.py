"""Adds a fraction of the previous forward's expected embedding to the input of each open position.

dInfer: An Efficient Inference Framework for Diffusion Language Models ("iteration smoothing"),
https://arxiv.org/abs/2510.08666

    input_i = E[mask] + w_t * softmax(l_i) E        w_t = min(weight + growth * t, most), t counts forwards

The mask's own embedding keeps its full weight. Only open positions of the active block are smoothed, and none at a
block's first forward, or where the forward before predicted nothing (that of a causal prefix predicts one position).
The reference smooths later blocks too and lets the mask id take part in the mixture. The threshold that falls with t,
with which it is published, is `threshold:fall=0.02`.
Exact: no; `weight=0,growth=0` changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...limits import MAX_SCALE
from ...registry import register
from ..contracts import Canvas, Evidence, Inputs


@dataclass
class Mixture:
    """The last forward's expected embeddings of the active block.

    Attributes:
        expected: [B, W, E] embeddings, 0 where it predicted nothing; None before the first forward.
    """

    expected: Tensor | None = None


@register("smoothing", checked="reference:samplers.masked.test_smoothing.naive")
class Smoothing(Inputs):
    weight: Annotated[float, "weight of the mixture at the first forward"] = 0.15
    growth: Annotated[float, "increase of the weight per forward"] = 0.02
    most: Annotated[float, "greatest weight"] = 0.3

    def __post_init__(self) -> None:
        self.require("weight", "growth", "most", least=0)
        self.require("weight", "growth", "most", most=MAX_SCALE)

    def start(self, canvas: Canvas) -> Mixture:
        return Mixture()

    def soft(self, canvas: Canvas, state: Mixture) -> Tensor | None:
        if state.expected is None:
            return None
        weight = np.minimum(self.weight + self.growth * canvas.nfe, self.most) * ~canvas.block_started
        scale = upload(torch.from_numpy(weight).to(state.expected.dtype), state.expected.device)[:, None, None]
        return state.expected * scale * canvas.eligible[..., None]

    def observe(self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Mixture) -> None:
        if self.weight or self.growth:
            unknown = ~evidence.predicted[..., None]
            state.expected = evidence.distribution.expected(embed).masked_fill(unknown, 0)
