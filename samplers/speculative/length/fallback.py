"""Ends a draft before the first token of low confidence, and leaves that token to the target.

Speculative Decoding with Big Little Decoder, https://arxiv.org/abs/2302.07863 (its fallback policy)

    the draft ends before token i  iff  max q_i < below

Its rollback policy is the acceptance `bild`; with an exact acceptance only the paper's fallback policy remains.

Deviates from the paper: a draft has at most the drafter's k tokens.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Length


@register("fallback", exact="greedy", checked="joint")
class Fallback(Length):
    provides = frozenset({Trait.DROPS_LAST, Trait.OBSERVES_TOKENS})

    below: Annotated[float, "the target takes over if the drafter's likeliest token has less than this probability"] = (
        0.6
    )

    def __post_init__(self) -> None:
        self.require("below", least=0, most=1)

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: None) -> Tensor:
        return confidence < self.below
