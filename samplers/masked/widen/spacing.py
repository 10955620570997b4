"""Removes candidates too close to a more confident one of the same step, after any select.

Plan for Speed: Dilated Scheduling for Masked Diffusion Language Models (DUS), https://arxiv.org/abs/2506.19037
("dilated spacing")

    of what was chosen, from the highest score on: keep i if |i - j| >= gap for every j that was kept
    gap = max(2, floor(floor(B / base) m / B)) with m open positions in a block of B

What is left out is a candidate again at the next step. `gap=2` is the veto of some engines: no neighbours in one step.
Of equal scores the lowest position comes first.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import descending
from ...registry import register
from ..contracts import Canvas, Proposal, Widen


@register("spacing", checked="reference:reference.naive_selects.spacing")
class Spacing(Widen):
    gap: Annotated[int | None, "least distance of two commits of a step; none: it shrinks as the block fills"] = None
    base: Annotated[int, "with gap=none, the first distance is the block's length divided by this"] = 2

    def __post_init__(self) -> None:
        self.require("gap", least=1)
        self.require("base", least=2)

    @property
    def exact(self) -> str:
        return "greedy" if self.gap == 1 else "relaxed"

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        if self.gap == 1:
            return chosen
        width, size = chosen.shape[1], canvas.block_lengths
        gap = np.full_like(canvas.block_remaining, self.gap or 2)
        if self.gap is None:
            gap = np.maximum(2, canvas.block_remaining * (size // self.base) // size)
        each, column = upload(gap, chosen.device)[:, None, None], torch.arange(width, device=chosen.device)
        near = (column[:, None] - column).abs() < each  # [B, W, W]
        rank = descending(proposal.score)[1]
        ahead = near & (rank[:, None, :] < rank[:, :, None])  # [B, W, W]: the surer ones in reach of each position
        left, spaced = chosen & proposal.eligible, torch.zeros_like(chosen)
        for _ in range(-(-width // int(gap.min()))):  # at most this many positions keep the distance
            leads = left & ~(ahead & left[:, None, :]).any(2)
            spaced = spaced | leads
            left = left & ~(near & leads[:, None, :]).any(2)
        return spaced
