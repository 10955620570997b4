"""The base of query stages that leave out masks after the block, chosen when the block is entered.

Where blocks move, one that grows takes in what is after it; one whose end comes nearer is a new choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contracts import Canvas, Query, Request


@dataclass
class State:
    """The masks kept in each row when its block was entered."""

    suffix: np.ndarray  # [B, L] bool
    begin: np.ndarray  # [B] where that block begins; -1 before the first
    end: np.ndarray  # [B] where that block ended when it was entered


@dataclass(frozen=True)
class SuffixQuery(Query):
    """Keeps some of the masks after the block; a subclass chooses them."""

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
