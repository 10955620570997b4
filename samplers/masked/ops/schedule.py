"""Commit schedules that are fixed beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..canvas import Canvas


def even_share(total: np.ndarray | int, parts: np.ndarray | int, index: np.ndarray | int) -> np.ndarray:
    """The share of part `index` when `total` is split evenly over `parts`; the first `total % parts` get one more.

    This is the linear schedule of LLaDA (https://arxiv.org/abs/2502.09992): tokens of a block over its steps.

    >>> even_share(7, 3, np.arange(3))
    array([3, 2, 2])
    """
    total, parts, index = np.asarray(total), np.asarray(parts), np.asarray(index)
    share: np.ndarray = total // parts + (index < total % parts)
    return share


@dataclass
class BlockClock:
    """Each row's position in the schedule of its active block; [B] arrays."""

    tokens: np.ndarray  # open when the block was entered
    start: np.ndarray  # the clock when the block was entered
    steps: np.ndarray  # the block's share of all steps

    @classmethod
    def of(cls, canvas: Canvas) -> BlockClock:
        """The clock before the first step."""
        return cls(*(np.zeros(len(canvas), dtype=np.int64) for _ in range(3)))

    def enter(self, canvas: Canvas, steps: int | None, now: np.ndarray) -> None:
        """Records the blocks that rows have just entered; `now`: the clock; `steps`: of the whole canvas.

        A block gets an even share of `steps`, the first blocks one more and each at least one; without `steps`, one a
        token.
        """
        if not canvas.block_started.any():
            return
        self.tokens = np.where(canvas.block_started, canvas.block_remaining, self.tokens)
        self.start = np.where(canvas.block_started, now, self.start)
        share = canvas.block_remaining if steps is None else block_share(canvas, steps)
        self.steps = np.where(canvas.block_started, np.maximum(share, 1), self.steps)


def total_steps(canvas: Canvas, steps: int | None) -> np.ndarray:
    """[B]: the number of steps for the whole canvas: `steps`, or one per token."""
    return canvas.num_masked if steps is None else np.full(len(canvas), steps)


def block_share(canvas: Canvas, steps: np.ndarray | int) -> np.ndarray:
    """[B]: the number of `steps` for the active block: an even share, and one more for the first blocks."""
    blocks, at = _blocks(canvas)
    return even_share(steps, blocks, at)


def block_begin(canvas: Canvas, steps: int | None) -> np.ndarray:
    """[B]: the total number of steps of the blocks before the active one; without `steps`, one per token."""
    if steps is None:
        before = np.arange(canvas.length + 1) < canvas.block_start[:, None]
        tokens: np.ndarray = (before & ~canvas.given_host).sum(1)
        return tokens
    blocks, at = _blocks(canvas)
    begin: np.ndarray = at * (steps // blocks) + np.minimum(at, steps % blocks)
    return begin


def _blocks(canvas: Canvas) -> tuple[np.ndarray, np.ndarray]:
    """The number of blocks of each row and the index of the active one, both [B]."""
    first = (canvas.prompt - canvas.origin) // canvas.block_length
    blocks = -(-(canvas.planned - canvas.origin) // canvas.block_length) - first
    at = (canvas.block_start - canvas.origin) // canvas.block_length - first
    return np.maximum(blocks, 1), at


@lru_cache(maxsize=64)
def _times(steps: int, eps: float) -> np.ndarray:
    return torch.linspace(1, eps, steps + 1).numpy()


def times(steps: np.ndarray, eps: float) -> np.ndarray:
    """The times of Dream's schedule (https://arxiv.org/abs/2508.15487), evenly from 1 down to `eps`, in float32.

    `steps` [B] has one count a row; [B, 1 + the most], 0 past a row's own.
    """
    distinct, which = np.unique(steps, return_inverse=True)
    table = np.zeros((len(distinct), int(distinct[-1]) + 1), dtype=np.float32)
    for row, count in zip(table, distinct, strict=True):
        row[: count + 1] = _times(int(count), eps)
    return table[which]


def commit_share(steps: np.ndarray, eps: float) -> np.ndarray:
    """float32 [B, most steps]: the share of open positions that each step of Dream's schedule commits: 1 - s/t; last 1.

    >>> commit_share(np.array([2, 1]), 0.5)
    array([[0.25, 1.  ],
           [1.  , 1.  ]], dtype=float32)
    """
    at = times(steps, eps)
    share = np.ones_like(at[:, 1:])
    last = np.arange(share.shape[1]) >= steps[:, None] - 1
    np.divide(at[:, 1:], at[:, :-1], out=share, where=~last)
    return np.where(last, np.float32(1), 1 - share)
