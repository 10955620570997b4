"""Commits every confident candidate; if there is none, follows Dream's schedule at the actual share of masks.

Dimple: Discrete Diffusion Multimodal Large Language Model with Parallel Decoding ("confident decoding"),
https://arxiv.org/abs/2505.16990

    commit = {i : score_i > tau}, or if there is none the best int(n (1 - s / t)) of n open tokens,
    t = n / n_0, s the first of the times still to come, below t, for which that is 1 or more; all if s is the last time

The times are those of `timesteps`, one per step; at the last step everything is committed. n_0 is the number of
tokens open when the block was entered. `steps` is for the whole canvas and is shared out over its blocks, at least one
each; Dimple itself decodes the canvas as one block. The published code takes a threshold of 0 or less as none.
`order=left` is Dimple's "autoregressive" with a threshold: where nothing is sure enough, the leftmost token alone.
A score that is never above 0 (`entropy`) never passes. Dimple scores from the raw distribution or, as Dream does, from
the filtered one: `of` of the proposer.
`reference=true` breaks ties of the score as torch.topk does over the canvas row.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...ops.rank import best, top, top_as_published
from ...registry import register
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock, times


@dataclass
class State:
    """The schedule of each row's active block."""

    clock: BlockClock
    times: np.ndarray  # [B, K + 1] float32: times of the schedule, 0 after the row's last
    quota: np.ndarray  # [B] committed at the coming step if no candidate is confident
    last: np.ndarray  # [B] bool, the coming step is the block's last


@register("confident", checked="golden/dimple reference:reference.naive_schedules.confident")
class Confident(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.95, 0.98, 0.9, 0.8, 0.7)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)}

    tau: Annotated[
        float | None, "candidates above this score are committed, a probability; none: only the schedule"
    ] = 0.95
    steps: Annotated[int | None, "steps for the whole canvas; none: one per token"] = None
    eps: Annotated[float, "diffusion time at which the schedule ends"] = 1e-3
    order: Annotated[
        Literal["score", "left"], "if no score exceeds tau: commit the best scores, or the leftmost position"
    ] = "score"
    reference: Annotated[bool, "order equal scores as the published code does"] = False

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1, hint="tau=none turns it off")
        self.require("steps", least=1)
        if not 0 <= self.eps < 1:
            raise SpecError(f"confident: eps must lie in [0, 1), got {self.eps}")

    def start(self, canvas: Canvas) -> State:
        rows = len(canvas)
        return State(
            BlockClock.of(canvas), np.ones((rows, 2), np.float32), np.ones(rows, np.int64), np.zeros(rows, bool)
        )

    def skipped_steps(self, canvas: Canvas, state: State) -> np.ndarray:
        clock = state.clock
        clock.enter(canvas, self.steps, canvas.step)
        if canvas.block_started.any():
            state.times = times(clock.steps, self.eps)
        at, left = canvas.step - clock.start, canvas.block_remaining
        # A stage that revises may hold a row with nothing open.
        ratio = np.maximum(left, 1).astype(np.float32) / clock.tokens.astype(np.float32)
        counts = (left[:, None].astype(np.float32) * (1 - state.times / ratio[:, None])).astype(np.int64)
        index = np.arange(counts.shape[1])
        final = index >= clock.steps[:, None]  # the row's last time, and padding
        counts = np.where(final, left[:, None], counts)
        positive = (final | (index > at[:, None])) & (counts >= 1)
        state.quota = counts[np.arange(len(counts)), positive.argmax(1)]
        state.last = at >= clock.steps - 1
        return np.zeros_like(at)

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        scheduled = self._scheduled(proposal, canvas, state)
        if self.tau is None:
            return scheduled
        sure = (proposal.score > self.tau) & proposal.eligible
        last = upload(state.last, sure.device)[:, None]
        return torch.where(sure.any(1, keepdim=True) & ~last, sure, scheduled)

    def _scheduled(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        """[B, W] bool: the choice for rows without a confident candidate."""
        if self.order == "left":
            last = upload(state.last, proposal.score.device)[:, None]
            return best(proposal.eligible.to(torch.int8)) | (proposal.eligible & last)
        if self.reference:
            return top_as_published(proposal.score, state.quota, canvas.window_host, canvas.total)
        return top(proposal.score, upload(state.quota, proposal.score.device)[:, None])
