"""Commits by a schedule that is fixed beforehand: an even share of each block's tokens at every step.

Large Language Diffusion Models, https://arxiv.org/abs/2502.09992

    a block of n open tokens and s steps commits n // s + [i < n % s] at its step i, the surest (or random ones) first

`steps` is for the whole canvas and is shared out over its blocks, at least one each. The published loop's idle
forwards, where a block has more steps than tokens, are left out; the clock skips them before the next block.
`reference=true` breaks ties of the score as torch.topk does over the canvas row, which the published loop relies on;
otherwise the lowest position wins.
Exact: yes with one token a step in order of confidence, otherwise no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import best, descending, top, top_as_published
from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Proposal, Request, Select
from ..ops.schedule import block_begin, block_share, even_share, total_steps


@dataclass
class Block:
    """The schedule of each row's active block; [B] arrays."""

    tokens: np.ndarray  # open when the block was entered
    start: np.ndarray  # the clock when the block was entered
    quota: np.ndarray  # committed at the coming step


@register("fixed", checked="golden/llada reference:reference.naive_masked.fixed")
class Fixed(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (16, 8, 4)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (128, 64, 32, 16, 8)}

    steps: Annotated[int | None, "steps for the whole canvas; none: one per token"] = None
    order: Annotated[Literal["confidence", "random"], "commit the highest scores first, or random positions"] = (
        "confidence"
    )
    reference: Annotated[bool, "order equal scores as the published code does"] = False

    def __post_init__(self) -> None:
        self.require("steps", least=1)

    def start(self, canvas: Canvas) -> Block:
        return Block(*(np.zeros(len(canvas), dtype=np.int64) for _ in range(3)))

    def total_steps(self, canvas: Canvas) -> np.ndarray:
        return total_steps(canvas, self.steps)

    def entry_step(self, canvas: Canvas) -> np.ndarray:
        return block_begin(canvas, self.steps)

    def skipped_steps(self, canvas: Canvas, state: Block) -> np.ndarray:
        state.tokens = np.where(canvas.block_started, canvas.block_remaining, state.tokens)
        state.start = np.where(canvas.block_started, canvas.step, state.start)
        steps = state.tokens if self.steps is None else np.maximum(block_share(canvas, self.steps), 1)
        at = canvas.step - state.start
        state.quota = np.clip(even_share(state.tokens, steps, at), 1, canvas.block_remaining)
        return np.zeros_like(at)

    def commits(self, canvas: Canvas, state: Block) -> np.ndarray:
        return state.quota

    @property
    def provides(self) -> frozenset[Trait]:
        if self.order == "random":
            return frozenset({Trait.KNOWN_ORDER})
        order = frozenset({Trait.ORDER_OF_SCORES})
        return order if self.reference else order | {Trait.NEEDS_NO_HOST}

    def commit_order(self, canvas: Canvas, request: Request, state: Block) -> Tensor:
        """The order of a random schedule; the proposer `random` gives the same order."""
        positions, eligible = map(torch.from_numpy, (canvas.window_host, canvas.eligible_host))
        score = self._random(canvas, request, positions, eligible)
        return (descending(score)[1] + 1) * self._chosen(score, canvas, state)

    def select(self, proposal: Proposal, canvas: Canvas, state: Block) -> Tensor:
        score = proposal.score
        if self.order == "random":
            score = self._random(canvas, proposal.evidence.request, canvas.window, proposal.eligible)
        return self._chosen(score, canvas, state)

    @staticmethod
    def _random(canvas: Canvas, request: Request, positions: Tensor, eligible: Tensor) -> Tensor:
        order = request.source.uniform(canvas.rows, np.zeros_like(canvas.step), positions, "order")
        return order.float().masked_fill(~eligible, -torch.inf)

    def _chosen(self, score: Tensor, canvas: Canvas, state: Block) -> Tensor:
        """[B, W] bool: the highest-scored candidates, as many as the quota."""
        if self.reference:
            return top_as_published(score, state.quota, canvas.window_host, canvas.total)
        if isinstance(state.quota, np.ndarray) and (state.quota == 1).all():  # else only the device knows it
            return best(score)
        return top(score, upload(state.quota, score.device)[:, None])
