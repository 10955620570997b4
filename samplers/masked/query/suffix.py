"""Keeps the masks in a window after the block and the row's last masks; the model does not see masks between.

Streaming-dLLM: Accelerating Diffusion LLMs via Suffix Pruning and Dynamic Decoding, https://arxiv.org/abs/2601.17917

    visible = everything up to the block's end e, [e, e + window), and the last `tail` positions

The last position carries the length of the answer. Every position keeps its number, and with it the angles of its keys.
What is left out is neither queried nor attended to: a forward is shorter, with any cache. The set holds from when a
block is entered until the next one is. The paper's windows are 96 and 256, its cache is `prefix`, and its threshold
falls with the share of masks that are left: `threshold:relax`.
Deviates from the authors' code: tokens that were given after the block stay, where it counts them among the masks; a
row ends by `eos`, where it fills all blocks after one that has an end token.
Exact: no; yes where the window reaches to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ...registry import register
from ..contracts import Canvas, Query, Request


@dataclass
class State:
    """The masks kept in each row when its block was entered."""

    suffix: np.ndarray  # [B, L] bool
    begin: np.ndarray  # [B] where that block begins; -1 before the first
    end: np.ndarray  # [B] where that block ended when it was entered


@dataclass(frozen=True)
class SuffixQuery(Query):
    """Keeps some of the masks after the block, chosen by a subclass when the block is entered.

    Where blocks move, one that grows takes in what is after it; one whose end comes nearer is a new choice.
    """

    def start(self, canvas: Canvas) -> State:
        none = np.full(len(canvas), -1)
        return State(np.zeros((len(canvas), canvas.length), dtype=bool), none, none.copy())

    def survivors(self, distance: np.ndarray, canvas: Canvas, request: Request) -> np.ndarray:
        """[B, L] bool: the masks after the block that are kept.

        `distance` [B, L] counts from the first position after it, which has 0; before that it is negative.
        """
        raise NotImplementedError

    def visible(self, canvas: Canvas, request: Request, state: State) -> np.ndarray:
        # Hypotheses that are a step ahead of their row have also entered the block.
        block_started = (
            canvas.block_started | (canvas.block_end < state.end)
            if canvas.moving
            else canvas.block_start != state.begin
        )
        if block_started.any():
            survivors = self.survivors(np.arange(canvas.length) - canvas.block_end[:, None], canvas, request)
            state.suffix = np.where(block_started[:, None], survivors, state.suffix)
            state.begin = np.where(block_started, canvas.block_start, state.begin)
            state.end = np.where(block_started, canvas.block_end, state.end)
        return state.suffix


@register("suffix", checked="reference:reference.naive_query.suffix")
class SuffixWindow(SuffixQuery):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"window": (256, 96, 32)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"window": (256, 96, 32, 8, 0)}

    window: Annotated[int, "masks after the block that stay visible"] = 96
    tail: Annotated[int, "positions at the end of the row that stay visible"] = 1

    def __post_init__(self) -> None:
        self.require("window", "tail", least=0)

    def survivors(self, distance: np.ndarray, canvas: Canvas, request: Request) -> np.ndarray:
        last = np.arange(canvas.length) >= canvas.total[:, None] - self.tail
        survivors: np.ndarray = ((distance >= 0) & (distance < self.window)) | last
        return survivors
