"""Commits more candidates at once the more confident they are, by a threshold that rises with their number.

Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding,
https://arxiv.org/abs/2505.22618

    commit the longest run r = 1..m of the ranked scores with c_(r) >= 1 - f / (r + 1); the first always

`reference=true` does what the published loop does when exactly the last open candidate fails: it commits it as well.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...ops.rank import descending
from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Proposal, Select


@register("factor", checked="golden/llada reference:reference.naive_masked.factor")
class Factor(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"f": (1.0, 0.5, 1.5, 2.0)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"f": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)}

    provides = frozenset({Trait.NEEDS_NO_HOST})

    f: Annotated[float, "upper bound of (r + 1)(1 - c), r the rank of the score c"] = 1.0
    reference: Annotated[bool, "also commit the last open candidate, as the published loop does"] = False

    def __post_init__(self) -> None:
        self.require("f", least=0)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        ordered, rank = descending(proposal.score)
        ranks = torch.arange(2, ordered.shape[1] + 2, device=ordered.device)
        passes = ordered >= 1 - self.f / ranks
        passes[:, 0] = True
        count = passes.cumprod(1).sum(1, keepdim=True)
        if self.reference:
            candidates = proposal.eligible.sum(1, keepdim=True)
            count = torch.where(count == candidates - 1, candidates, count)
        return (rank < count) & proposal.eligible
