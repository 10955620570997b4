"""Masks the least confident tokens of a nearly finished block again, a fixed number of times.

Remasking Discrete Diffusion Models with Inference-Time Scaling (ReMDM), https://arxiv.org/abs/2503.00307

    once a share `at` of a block is committed, each of the next `rounds` steps reopens the `tokens` positions that were
    committed with the lowest score

This is the schedule with which ReMDM has been used on masked language models that decode in blocks (remask late, a
few tokens at a time, by commit-time confidence); the paper's own schedules draw the positions at random.
Exact: no; `rounds=0` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...ops.rank import top
from ...registry import register
from ...traits import NONE, Trait
from ..contracts import Canvas, Proposal, Revise, Revision


@dataclass
class Rounds:
    """The rounds of each row's active block, [B, 1] int64."""

    size: Tensor  # open positions when the block was entered
    left: Tensor  # rounds left


@register("remdm", checked="reference:reference.naive_revise.remdm")
class Remdm(Revise):
    at: Annotated[float, "committed share of the block at which reopening begins"] = 0.875
    rounds: Annotated[int, "steps of a block that reopen tokens"] = 4
    tokens: Annotated[int, "positions reopened per step"] = 1

    def __post_init__(self) -> None:
        if not 0 < self.at <= 1:
            raise SpecError(f"remdm: at must be above 0 and at most 1, got {self.at}")
        if self.rounds < 0 or self.tokens < 1:
            raise SpecError(
                f"remdm: rounds must be at least 0 and tokens at least 1, got {self.rounds} and {self.tokens}",
                hint="rounds=0 reopens nothing",
            )

    @property
    def provides(self) -> frozenset[Trait]:
        return frozenset({Trait.IDLE}) if self.rounds == 0 else NONE

    def start(self, canvas: Canvas) -> Rounds:
        none = torch.zeros((len(canvas), 1), dtype=torch.int64, device=canvas.tokens.device)
        return Rounds(none, none)

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Rounds) -> Revision:
        block_started = upload(canvas.block_started, chosen.device)[:, None]
        left = upload(canvas.block_remaining, chosen.device)[:, None]
        state.size = torch.where(block_started, left, state.size)
        state.left = state.left.masked_fill(block_started, self.rounds)
        committed = state.size - left + chosen.sum(1, keepdim=True)
        reopens = (state.left > 0) & (committed >= self.at * state.size - 1e-4)  # 0.6 * 25 may round to more than 15
        ours = canvas.committed | chosen
        score = torch.where(chosen, proposal.score, canvas.commit_score.gather(1, canvas.window))
        lowest = top((-score).masked_fill(~ours, -torch.inf), torch.full_like(state.left, self.tokens))
        state.left = state.left - reopens.long()
        return Revision(reopen=lowest & ours & reopens)
