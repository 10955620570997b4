"""Deferred commitment: the block is a window from the first open position with a fixed number of masks.

Deferred Commitment Decoding for Diffusion Language Models with Confidence-Aware Sliding Windows,
https://arxiv.org/abs/2601.02076

    block = [L, R): L the first open position, R <= L + most the largest with no more than `masks` masks in [L, R)

A position near the end of a block waits until its right context is known as well: the window moves on with every
commit. The paper commits by `threshold`. Caches refresh after every `block_length` commits; the paper's also queries r
positions on either side: `vicinity:before=r,after=r,warmup=0`. Not built: its longer blocks for block-causal models.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ...registry import register
from ..contracts import Block, Canvas, Span


@dataclass
class State:
    """[B]: the number of committed tokens of each row when caches were last refreshed."""

    refreshed: np.ndarray


@register("dcd", checked="reference:reference.naive_blocks.Dcd")
class DeferredCommitment(Block):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"masks": (None, 8, 16)}

    masks: Annotated[int | None, "most open positions in the window; none: block_length"] = None
    most: Annotated[int | None, "most positions in the window; none: twice block_length"] = None

    def __post_init__(self) -> None:
        self.require("masks", "most", least=1)

    def start(self, canvas: Canvas) -> State:
        return State(np.full(len(canvas), -canvas.block_length))

    def span(self, canvas: Canvas, state: State) -> Span:
        block_start = canvas.first_open
        # [B, L + 1] the number of open positions up to each one; the block ends before the first position at which it
        # exceeds the limit, or at the row's end.
        count = canvas.open_host.cumsum(1)
        over = count > (self.masks or canvas.block_length)
        end = np.where(over.any(1), over.argmax(1), canvas.total)
        block_end = np.minimum(np.minimum(end, block_start + (self.most or 2 * canvas.block_length)), canvas.total)
        committed = canvas.num_masked - count[:, -1]
        block_started = committed - state.refreshed >= canvas.block_length
        state.refreshed = np.where(block_started, committed, state.refreshed)
        return Span(block_start, block_end, block_started)
