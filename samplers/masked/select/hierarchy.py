"""Commits the most confident position of every run of open ones, so that tokens committed together are far apart.

dInfer: An Efficient Inference Framework for Diffusion Language Models ("hierarchical decoding"),
https://arxiv.org/abs/2510.08666

    commit = {i : score_i is the highest of its run of open positions in the block, and score_i > low}
             and {i : score_i > high}, or the best position if there is none

Of equal scores in a run the lowest position is committed; `reference=true` commits all of them. The published variant
that commits the best position only where it is below `low` comes to the same.
Exact: no; `low=1,high=none` is `sequential`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register("hierarchy", checked="golden/llada reference:reference.naive_selects.hierarchy")
class Hierarchy(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"high": (0.9, 0.95, 0.8), "low": (0.4, 0.6)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"high": (0.98, 0.95, 0.9, 0.8, 0.7, 0.6)}

    high: Annotated[float | None, "score above which every position is committed; none: no such rule"] = 0.9
    low: Annotated[float, "score above which the best position of a run is committed"] = 0.4
    reference: Annotated[bool, "commit all equally good best positions of a run"] = False

    def __post_init__(self) -> None:
        self.require("high", "low", least=0, most=1)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        score, open_ = proposal.score, proposal.eligible
        starts = open_.clone()
        starts[:, 1:] &= ~open_[:, :-1]
        run = starts.cumsum(1)  # 0 before the first run
        shape = (len(score), score.shape[1] + 1)
        highest = score.new_full(shape, -torch.inf).scatter_reduce_(1, run, score, "amax")
        leads = open_ & (score == highest.gather(1, run))
        if not self.reference:
            column = torch.arange(score.shape[1], device=score.device).expand_as(run)
            lowest = run.new_full(shape, shape[1]).scatter_reduce_(1, run, column.where(leads, shape[1]), "amin")
            leads &= column == lowest.gather(1, run)
        chosen = leads & (score > self.low)
        return chosen if self.high is None else chosen | (score > self.high)
