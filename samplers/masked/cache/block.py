"""Block cache, for block-causal families: after a block only the K/V of its final tokens are kept.

SDAR: A Synergistic Diffusion-AutoRegression Paradigm for Scalable Sequence Generation,
https://arxiv.org/abs/2510.06303

    queried = [start of the block just finished, block end) when a block is entered, [block start, block end) otherwise

Within a block the K/V of its positions are overwritten at every step. Later blocks never see those of its last masks:
the finished block is queried once more, with final tokens, in the same forward that begins the next one. The published
loops spend a separate forward on it.
Exact: greedy. Other families are refused: their K/V of a finished block change with the tokens after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Cache, Canvas, QuerySpec
from .changes import FINISHED_BLOCKS


@dataclass
class State:
    """The number of leading positions per row whose stored K/V were computed from final tokens."""

    final: np.ndarray  # [B]


@register("block", exact="greedy", checked="golden/llada2 golden/sdar_moe reference:reference.naive_caches.block")
class BlockCache(Cache):
    attention = "block-causal"
    requires: ClassVar[Reasons] = {Trait.BLOCK_CAUSAL: FINISHED_BLOCKS}
    provides = frozenset({Trait.STORES_KV, Trait.KV_OF_TOKENS, Trait.WHOLE_BLOCK})

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros_like(canvas.block_start))

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        start = np.where(canvas.block_started, state.final, canvas.block_start)
        state.final = canvas.block_start
        return QuerySpec(start, canvas.end)

    def final(self, state: State) -> np.ndarray:
        return state.final
