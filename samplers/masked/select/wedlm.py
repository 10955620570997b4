"""Commits positions of low entropy, with a preference for those near the first open one.

WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention for Fast Inference,
https://arxiv.org/abs/2512.22737

    a_i = H_i + distance * (i - first open position)
    commit {i : a_i < tau}, or the position of the least a_i if there is none

H is the entropy of the model's own distribution in nats, whatever candidates are drawn from.
Exact: no; `tau=none` commits one position a forward.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import best
from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register("wedlm", checked="golden/wedlm")
class WeDLM(Select):
    default_propose = "entropy"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.4, 0.2, 0.1, 0.05)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)}

    tau: Annotated[
        float | None, "positions of less entropy than this are committed, in nats; none: only the lowest"
    ] = 0.4
    distance: Annotated[float, "nats added to the entropy for each position after the first open one"] = 0.02

    def __post_init__(self) -> None:
        self.require("tau", "distance", least=0)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        entropy = proposal.evidence.distribution.confidence.entropy
        first = upload(canvas.first_open, entropy.device)[:, None]
        penalized = entropy + self.distance * (proposal.evidence.positions - first)
        penalized = penalized.masked_fill(~proposal.eligible, torch.inf)
        least = best(-penalized)
        if self.tau is None:
            return least
        low = penalized < self.tau
        return torch.where(low.any(1, keepdim=True), low, least)
