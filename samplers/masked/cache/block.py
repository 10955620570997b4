"""Block cache, for block-causal families: only the K/V of final tokens outlives its block.

SDAR: A Synergistic Diffusion-AutoRegression Paradigm for Scalable Sequence Generation,
https://arxiv.org/abs/2510.06303

    asked = [start of the block just finished, block end) when a block is entered, [block start, block end) otherwise

Within a block the K/V of its positions is overwritten at every step. That of its last masks is never seen by a later
block: the finished block is asked once more, with final tokens, in the same forward that begins the next one. The
published loops spend a forward of its own on it.
Exact: greedy. Other families are refused: there the K/V of a finished block changes with what comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pardec.models.errors import SpecError

from ...registry import register
from ..contracts import Cache, Canvas, QuerySpec


@dataclass
class Final:
    """How far the stored K/V are those of final tokens."""

    until: np.ndarray  # [B]


@register("block", stage="cache", paper="arXiv:2510.06303", exact="greedy", checked="reference")
@dataclass(frozen=True)
class BlockCache(Cache):
    attention = "block-causal"

    def start(self, canvas: Canvas) -> Final:
        if not canvas.block_causal:
            raise SpecError(
                "block: keeps the K/V of finished blocks, which are final in block-causal models alone",
                hint="this model sees what comes after a block too: use dual, prefix, vicinity or dkv",
            )
        return Final(np.zeros_like(canvas.lo))

    def query(self, canvas: Canvas, state: Final) -> QuerySpec:
        start = np.where(canvas.entered, state.until, canvas.lo)
        state.until = canvas.lo
        return QuerySpec(start, canvas.end)
