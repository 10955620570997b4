"""The base of query stages that leave out masks behind the block, chosen when the block is entered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contracts import Canvas, Query, Request


@dataclass
class State:
    """What was kept of each row when its block was entered."""

    suffix: np.ndarray  # [B, L] bool
    block: np.ndarray  # [B] where that block begins; -1 before the first


@dataclass(frozen=True)
class SuffixQuery(Query):
    """Keeps some of the masks behind the block; a subclass says which."""

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros((len(canvas), canvas.length), dtype=bool), np.full(len(canvas), -1))

    def survivors(self, distance: np.ndarray, canvas: Canvas, request: Request) -> np.ndarray:
        """[B, L] bool: the masks behind the block that stay.

        `distance` [B, L] counts from the first position behind it, which has 0; before that it is negative.
        """
        raise NotImplementedError

    def visible(self, canvas: Canvas, request: Request, state: State) -> np.ndarray:
        # Of hypotheses of a row, those that are a step further have entered the block as well.
        entered = canvas.entered if canvas.moving else canvas.lo != state.block
        if entered.any():
            survivors = self.survivors(np.arange(canvas.length) - canvas.hi[:, None], canvas, request)
            state.suffix = np.where(entered[:, None], survivors, state.suffix)
            state.block = np.where(entered, canvas.lo, state.block)
        return state.suffix
