"""Commits every position whose distribution is concentrated enough, and always the most concentrated.

dParallel: Learnable Parallel Decoding for dLLMs, https://arxiv.org/abs/2509.26488

    commit = {i : H_i <= tau}, or the best-scored position if there is none (by default the least entropy)

Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from pardec.models.errors import SpecError

from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register("entropy_threshold", stage="select", paper="arXiv:2509.26488", checked="golden/llada reference")
@dataclass(frozen=True)
class EntropyThreshold(Select):
    default_propose = "entropy"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.45, 0.1, 0.2, 0.7)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.05, 0.1, 0.2, 0.45, 0.7, 1.0)}

    tau: Annotated[float, "most entropy, nats"] = 0.45

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise SpecError(f"entropy_threshold: tau is an entropy in nats and at least 0, got {self.tau}")

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        return (proposal.evidence.distribution.confidence.entropy <= self.tau) & proposal.eligible
