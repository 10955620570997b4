"""Dynamic sliding block: the block begins at the first open position and grows with every committed token.

DSB: Dynamic Sliding Block Scheduling for Diffusion LLMs, https://arxiv.org/abs/2602.05992

    block = [s, e): s the first open position, e = prompt + W + tokens committed so far, e <= s + most

W is `block_length`: about W masks compete at any time. Caches refresh where s crosses a border of the grid; that of the
paper also queries 24 positions before s (4 for Dream) at every step: `vicinity:before=24,after=0,warmup=0`.
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
    """[B]: the block of the grid that contained each row's first open position."""

    border: np.ndarray


@register("dsb", checked="reference:reference.naive_blocks.Dsb")
class DynamicSlidingBlock(Block):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"most": (None, 32, 64)}

    most: Annotated[int | None, "greatest length of the block, in positions; none: unlimited"] = None

    def __post_init__(self) -> None:
        self.require("most", least=1)

    def start(self, canvas: Canvas) -> State:
        return State(np.full(len(canvas), -1))

    def span(self, canvas: Canvas, state: State) -> Span:
        block_start, size = canvas.first_open, canvas.block_length
        committed = canvas.num_masked - canvas.open_host.sum(1)
        block_end = np.maximum(canvas.prompt + size + committed, block_start + 1)
        if self.most is not None:
            block_end = np.minimum(block_end, block_start + self.most)
        before, state.border = state.border, (block_start - canvas.origin) // size
        return Span(block_start, block_end, state.border != before)
