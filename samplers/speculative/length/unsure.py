"""Stops after the first drafted token of low confidence.

Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    stop after token i  iff  max q_i < tau

Deviates from the authors' code: q is processed like the target's distribution, temperature and filters included.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Length


@register("unsure", exact="greedy", checked="joint")
class Unsure(Length):
    provides = frozenset({Trait.OBSERVES_TOKENS})

    tau: Annotated[float, "stop if the drafter's likeliest token has less than this probability; SWIFT uses 0.8"] = 0.4

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: None) -> Tensor:
        return confidence < self.tau
