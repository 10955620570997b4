"""Commits positions far apart first, in rounds of ever finer spacing, independent of confidence.

Plan for Speed: Dilated Scheduling for Masked Diffusion Language Models (DUS), https://arxiv.org/abs/2506.19037

    round t = 1, 2, ... commits the open positions i = 0, 1, ... of the block with i mod floor(B / base^t) = 0,
    and the last one the rest

A block of B positions takes log_base B rounds, rounded up, at most; a round that has nothing open is left out, and the
last one joins the one before if it is the smaller of the two. A shorter last block has the rounds of a full one. With
`skip` a candidate of less score waits for a later round of its block, at most for the last.

Deviates from the authors' code, where a position that was skipped stays masked. Without `skip` confidences order
nothing, so that this is a lower bound for other selects; `spacing` adds its spacing to any select.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...registry import register
from ...traits import NONE, Trait
from ..contracts import Canvas, Proposal, Request, Select


@lru_cache(maxsize=256)
def rounds(width: int, base: int) -> tuple[int, ...]:
    """The round in which each position of a block is committed, counted from 0.

    >>> rounds(8, 2)
    (0, 2, 1, 2, 0, 2, 1, 2)
    """
    each = [-1] * width
    count, stride = 0, width // base
    while stride >= 1:
        new = [at for at in range(0, width, stride) if each[at] < 0]
        for at in new:
            each[at] = count
        count, stride = count + bool(new), stride // base
    each = [count if at < 0 else at for at in each]
    last = max(each)
    if each.count(last) < each.count(last - 1):
        each = [min(at, last - 1) for at in each]
    return tuple(each)


@dataclass
class State:
    """[B, 1] int64: the round that each row's block has reached; -1 before the first."""

    round: Tensor


@register("dus", checked="reference:reference.naive_selects.DUS")
class DUS(Select):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"base": (2, 3, 4, 8)}

    base: Annotated[int, "factor by which the spacing shrinks per round"] = 2
    skip: Annotated[float, "candidates below this score wait for a later round, a probability; 0: none"] = 0.0

    def __post_init__(self) -> None:
        self.require("base", least=2)
        self.require("skip", least=0, most=1)

    def start(self, canvas: Canvas) -> State:
        return State(torch.full_like(canvas.tokens[:, :1], -1))

    @property
    def provides(self) -> frozenset[Trait]:
        return NONE if self.skip else frozenset({Trait.KNOWN_ORDER})

    def commit_order(self, canvas: Canvas, request: Request, state: State) -> Tensor:
        eligible = torch.from_numpy(canvas.eligible_host)
        level = self._levels(eligible, canvas)[0]
        chosen = eligible & (level == level.amin(1, keepdim=True))
        return chosen.cumsum(1) * chosen

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        level, last = self._levels(proposal.eligible, canvas)
        block_started = upload(canvas.block_started, level.device)[:, None]
        state.round = torch.maximum(state.round.masked_fill(block_started, -1) + 1, level.amin(1, keepdim=True))
        due = proposal.eligible & (level <= state.round)
        if not self.skip:
            return due
        return due & ((proposal.score >= self.skip) | (state.round >= last))

    def _levels(self, eligible: Tensor, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """The round of each position [B, W] int64, W where not eligible, and the last round of each row [B, 1]."""
        widths = canvas.block_end - canvas.block_start if canvas.moving else canvas.block_lengths
        each = np.full((len(widths), max(int(widths.max()), 1)), -1)
        for width in np.unique(widths[widths > 0]).tolist():
            each[widths == width, :width] = rounds(width, self.base)
        column = np.clip(canvas.window_host - canvas.block_start[:, None], 0, each.shape[1] - 1)
        level = upload(np.take_along_axis(each, column, 1), eligible.device)
        last = upload(each.max(1, keepdims=True), eligible.device)
        return level.masked_fill(~eligible, eligible.shape[1]), last
