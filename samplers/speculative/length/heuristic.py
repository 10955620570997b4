"""Drafts two tokens more after a fully accepted draft, and one fewer after any other.

Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large Language Models,
https://arxiv.org/abs/2405.04304 (the baseline it compares with, which is transformers' default)

    k <- k + 2  if all k were accepted,  else  max(1, k - 1)

Deviates from transformers: each row has its own k, at most the drafter's; a round that drafts nothing changes nothing.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Length, RoundResult


@dataclass
class _Wanted:
    k: np.ndarray  # [B]


@register("heuristic", exact="greedy", checked="joint")
class Heuristic(Length):
    provides = frozenset({Trait.OBSERVES_TOKENS})

    first: Annotated[int, "tokens of the first draft"] = 5
    more: Annotated[int, "tokens added after a full acceptance"] = 2
    less: Annotated[int, "tokens taken off after a rejection"] = 1

    def __post_init__(self) -> None:
        self.require("first", least=1)
        self.require("more", "less", least=0)

    def start(self, context: DecodeContext) -> _Wanted:
        return _Wanted(np.full(len(context.text), self.first))

    def budget(self, most: int, context: DecodeContext, state: _Wanted) -> np.ndarray:
        state.k = state.k.clip(1, most)
        return state.k

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Wanted) -> None:
        accepted, drafted = outcome.levels()
        step = np.where(accepted == drafted, self.more, -self.less)
        state.k = np.maximum(1, state.k + np.where(drafted > 0, step, 0))
