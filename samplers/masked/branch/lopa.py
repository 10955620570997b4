"""Looks ahead: runs branches of a row that commit one more token each, and keeps the most confident one.

LoPA: Scaling dLLM Inference via Lookahead Parallel Decoding, https://arxiv.org/abs/2512.16229

    branch 0: the row; branch j: the row and the j-th surest position that was not committed, by the last forward
    score = (p + m) / 2: p the probability of the extra token, 1 for branch 0; m the mean of the lowest half of the
    probabilities of the likeliest tokens at the masks that are left, by the branch's own forward
    the branch of the highest score survives; the sampler commits to it by that forward

A row with b branches costs as much as b rows.
Deviates from the published code, in which later branches commit tokens beyond the block of a D2F model.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.confidence import argmax
from ...ops.rank import descending
from ...registry import register
from ..contracts import Branch, Choice, Hypotheses, Proposal


@register("lopa", checked="reference:samplers.masked.test_lopa.naive")
class LookaheadParallel(Branch):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"branches": (2, 4, 8)}

    branches: Annotated[int, "branches per row, the row itself included"] = 2

    def __post_init__(self) -> None:
        self.require("branches", least=2)

    @property
    def depths(self) -> tuple[int, ...]:
        return (0, *[1] * (self.branches - 1))

    @property
    def needs(self) -> tuple[int, ...]:
        return tuple(range(self.branches))

    def draft(self, step: int, number: np.ndarray, choice: Choice, proposal: Proposal) -> Choice:
        rank = upload(number, proposal.score.device)[:, None]
        return Choice((descending(proposal.score)[1] == rank - 1) & proposal.eligible, choice.tokens)

    def survivors(self, hypotheses: Hypotheses) -> Tensor:
        canvas, eligible = hypotheses.canvas, hypotheses.proposal.eligible
        _, probability = hypotheses.proposal.evidence.distribution.greedy
        count = eligible.sum(1, keepdim=True)
        ordered = probability.masked_fill(~eligible, torch.inf).sort(1).values
        lowest = torch.arange(ordered.shape[1], device=ordered.device) < ((count + 1) // 2).clamp(min=1)
        mean = ordered.clamp(max=1).masked_fill(~lowest, 0).sum(1) / lowest.sum(1)
        now = upload(canvas.nfe, mean.device)[:, None]
        extra = (canvas.commit_step == now) & ~canvas.open
        own = torch.where(extra, canvas.commit_score, 0).sum(1)
        own = torch.where(upload(hypotheses.number == 0, own.device), 1.0, own)
        table = hypotheses.table
        score = ((own + mean) / 2)[table.clamp(min=0)].masked_fill(table < 0, -torch.inf)
        return table.gather(1, argmax(score)[:, None])[:, 0]
