"""Sub-blocks, for block-causal families: a block is decoded a part at a time, from left to right.

Fast-dLLM v2: Efficient Block-Diffusion LLM, https://arxiv.org/abs/2509.26328

    eligible = the first sub-block with an open position
    queried = the block, or with `reuse` that sub-block alone once its first position is known

With `reuse` the K/V of the block's other positions are those of the last forward that queried the whole block: the
published block cache. K/V of finished blocks are kept as `block` keeps them. In a family whose predictions are shifted
by one, `first_before` takes the first token of a block from the forward that stores the finished one before it,
whatever its probability; without, it is a candidate like any other.
Whether a row's forward queries its whole block is decided by that row alone, where the published loop asks its batch.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Cache, Canvas, QuerySpec
from .changes import FINISHED_BLOCKS


@dataclass
class State:
    """The progress of each row within its block; [B] arrays."""

    final: np.ndarray  # length up to which stored K/V are those of final tokens
    whole: np.ndarray  # whether a forward has computed all of the active block


@register("subblock", checked="golden/fast_dllm_v2")
class SubBlock(Cache):
    attention = "block-causal"
    requires: ClassVar[Reasons] = {Trait.BLOCK_CAUSAL: FINISHED_BLOCKS}
    provides = frozenset({Trait.STORES_KV, Trait.PART_OF_BLOCK})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"size": (8, 4, 16)}

    size: Annotated[int, "positions of a sub-block"] = 8
    reuse: Annotated[bool, "compute only the sub-block once its first token is known"] = True
    first_before: Annotated[
        bool, "in shifted families, the forward that stores a finished block gives the next one's first token"
    ] = True

    def __post_init__(self) -> None:
        self.require("size", least=1)

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros_like(canvas.block_start), np.zeros(len(canvas), dtype=bool))

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        block_start, block_end, first = canvas.block_start, canvas.block_end, canvas.first_open
        state.whole &= ~canvas.block_started
        begin = block_start + (first - block_start) // self.size * self.size  # start of the sub-block
        end = np.minimum(begin + self.size, block_end)
        begins = (
            canvas.block_started & (first == block_start) & (block_start > 0) & (self.first_before and canvas.shift > 0)
        )
        alone = state.whole & (first > begin) & self.reuse
        start = np.where(canvas.block_started, state.final, np.where(alone, begin, block_start))
        stop = np.where(begins, block_start, np.where(alone, end, block_end))
        state.final = block_start
        state.whole |= ~begins
        only = (canvas.window_host >= begin[:, None]) & (canvas.window_host < end[:, None])
        only = np.where(begins[:, None], canvas.window_host == block_start[:, None], only)
        spec = QuerySpec(start, stop, must=begins, only=torch.from_numpy(only))
        if not (begins | alone).any():
            return spec
        at = np.arange(canvas.length + 1)
        mask = (at >= start[:, None]) & (at < stop[:, None])
        return QuerySpec(start, stop, torch.from_numpy(mask), begins, torch.from_numpy(only))
