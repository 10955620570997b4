"""Several blocks at once: the next block becomes active when a share of the block before it is decoded.

d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation, https://arxiv.org/abs/2601.07568;
Diffusion LLMs Can Do Faster-Than-AR Inference via Discrete Diffusion Forcing, https://arxiv.org/abs/2508.09192

    block k + 1 is active once a share `add` of block k is decoded, and no more than `blocks` are
    all confident positions of active blocks are committed; if the first of them has none, its best one is

Caches treat the first active block as the entered one: K/V are final, and reused, only for complete blocks. In
block-causal families the blocks are the model's own. Models that were not distilled for it lose more accuracy. The
published codes also mark blocks as "semi-complete", which decides nothing but when a later one has to make progress;
here only the first active block has to.
Exact: no; `blocks=1` is the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from pardec.models.caches.shares import ceil_of_share

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Block, Canvas, Span


@dataclass
class State:
    """The number of active blocks of each row, and where the first one began; [B] arrays."""

    active: np.ndarray
    first: np.ndarray


@register("multiblock", checked="reference:reference.naive_blocks.MultiBlock")
class MultiBlock(Block):
    # Its spans begin and end with blocks of the grid, as block-causal families need.
    conflicts: ClassVar[Reasons] = {
        **{trait: why for trait, why in Block.conflicts.items() if trait is not Trait.BLOCK_CAUSAL},
        Trait.PART_OF_BLOCK: Why(
            "{other} decodes a part of one block, and {me} decodes several blocks", "use another cache"
        ),
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"add": (0.1, 0.5), "blocks": (4, 2)}

    add: Annotated[float, "share of a block that is decoded before the next block becomes active"] = 0.1
    blocks: Annotated[int, "most blocks active at once"] = 4

    def __post_init__(self) -> None:
        self.require("add", least=0, most=1)
        self.require("blocks", least=1)

    def start(self, canvas: Canvas) -> State:
        return State(np.ones_like(canvas.block_start), np.full_like(canvas.block_start, -1))

    def span(self, canvas: Canvas, state: State) -> Span:
        size, rows = canvas.block_length, np.arange(len(canvas))
        number = (np.minimum(canvas.first_open, canvas.total - 1) - canvas.origin) // size
        block_start = canvas.origin + np.maximum(number, 0) * size
        block_started = block_start != state.first
        # Blocks that were active stay so when the first ones are complete.
        active = np.maximum(state.active - np.where(state.first < 0, 0, (block_start - state.first) // size), 1)
        open_before = np.pad(canvas.open_host[:, : canvas.length], ((0, 0), (1, 0))).cumsum(1)
        for _ in range(self.blocks - 1):
            begin = np.minimum(block_start + (active - 1) * size, canvas.total)
            end = np.minimum(begin + size, canvas.total)
            masks = open_before[rows, end] - open_before[rows, begin]
            inside = end - np.maximum(begin, canvas.prompt)
            enough = inside - masks >= ceil_of_share(self.add, inside)
            joins = enough & (end < canvas.total) & (active < self.blocks)
            if not joins.any():
                break
            active = active + joins
        state.active, state.first = active, block_start
        block_end = np.minimum(block_start + active * size, canvas.total)
        return Span(block_start, block_end, block_started, progress=np.minimum(block_start + size, canvas.total))
