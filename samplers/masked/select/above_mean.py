"""Commits every candidate whose score exceeds the mean score of the tokens committed so far.

Saber: An Efficient Sampling with Adaptive Acceleration and Backtracking Enhanced Remasking for Diffusion Language
Model, https://arxiv.org/abs/2510.18165

    commit = {i : score_i > mean of the scores that tokens of the row were committed with}, at least the best `least`

Before the first commit the mean counts as more than any score. A position that was taken back keeps its score in the
mean until it is committed again. Its partner `saber`, which takes tokens back, brings this select along.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import top
from ...registry import register
from ..contracts import Canvas, Proposal, Select


@dataclass
class Scores:
    """The number and the summed scores of tokens that this select has committed in each row."""

    total: Tensor  # [B, 1] float64, the sum of the scores
    count: Tensor  # [B, 1] int64, the number of scored positions
    last: Tensor  # [B, W] float32, the score of each committed position of the active block
    known: Tensor  # [B, W] bool, the positions with a score in `last`


@register("above_mean", checked="reference:reference.naive_revise.saber")
class AboveMean(Select):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"least": (1, 2, 3, 4, 6, 8)}

    least: Annotated[int, "fewest positions committed per step"] = 2

    def __post_init__(self) -> None:
        self.require("least", least=1)

    def start(self, canvas: Canvas) -> Scores:
        last = torch.zeros(canvas.window.shape, dtype=torch.float32, device=canvas.tokens.device)
        total = torch.zeros_like(last[:, :1], dtype=torch.float64)
        return Scores(total, total.long(), last, last.bool())

    def select(self, proposal: Proposal, canvas: Canvas, state: Scores) -> Tensor:
        score = proposal.score
        known = state.known & ~upload(canvas.block_started, score.device)[:, None]
        mean = torch.where(state.count > 0, state.total / state.count.clamp(min=1), torch.inf)
        sure = (score > mean) & proposal.eligible
        least = top(score, torch.full_like(state.count, self.least)) & proposal.eligible
        chosen = torch.where(sure.sum(1, keepdim=True) >= self.least, sure, least)
        gain = torch.where(chosen, score, 0).double() - torch.where(chosen & known, state.last, 0)
        state.total = state.total + gain.sum(1, keepdim=True)
        state.count = state.count + (chosen & ~known).sum(1, keepdim=True)
        state.last, state.known = torch.where(chosen, score, state.last), known | chosen
        return chosen
