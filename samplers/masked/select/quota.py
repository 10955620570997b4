"""Commits every confident candidate, and if they are fewer than a schedule's quota, the most confident up to it.

LLaDA2.0, https://arxiv.org/abs/2512.15745; SDAR, https://arxiv.org/abs/2510.06303

    H = {i : score_i > tau};  commit H if |H| >= q, else the q of highest score
    q = b // steps + [t < b mod steps] at the block's step t; without `steps`, q = least throughout

SDAR's low_confidence_dynamic, and with `tau=none` its low_confidence_static; with the proposer `leftmost` its
sequential. The share is of all b positions of a block, though a prompt may have filled some of its first one. SDAR's
own loop then overwrites prompt tokens, which this does not.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import top
from ...registry import register
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import even_share


@dataclass
class State:
    """The schedule of each row's active block; [B] arrays."""

    begun: np.ndarray  # the clock when the block was entered
    least: np.ndarray  # the least number committed at the coming step


@register("quota", paper="arXiv:2510.06303", checked="golden/llada2 golden/sdar_moe")
class Quota(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.9, 0.95, 0.98, 0.8, 0.7, 0.5)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)}

    tau: Annotated[float | None, "candidates above this score are committed; none: only the schedule"] = 0.95
    steps: Annotated[
        int | None, "steps of a block, each with an even share of its positions; none: `least` per step"
    ] = None
    least: Annotated[int, "fewest positions committed per step"] = 1

    def __post_init__(self) -> None:
        self.require("tau", most=1)
        self.require("steps", least=1)
        self.require("least", least=1)

    def start(self, canvas: Canvas) -> State:
        return State(*(np.zeros(len(canvas), dtype=np.int64) for _ in range(2)))

    def skipped_steps(self, canvas: Canvas, state: State) -> np.ndarray:
        state.begun = np.where(canvas.block_started, canvas.step, state.begun)
        share = np.zeros_like(state.begun)
        if self.steps is not None:
            at = np.minimum(canvas.step - state.begun, self.steps - 1)
            share = even_share(canvas.block_lengths, self.steps, at)
        state.least = np.clip(share, self.least, np.maximum(canvas.block_remaining, 1))
        return np.zeros_like(canvas.step)

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        score = proposal.score
        least = upload(state.least, score.device)[:, None]
        scheduled = top(score, least)
        if self.tau is None:
            return scheduled
        sure = score > self.tau
        return torch.where(sure.sum(1, keepdim=True) >= least, sure, scheduled)
