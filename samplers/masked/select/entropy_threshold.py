"""Commits every position whose distribution is concentrated enough, and always the most concentrated.

dParallel: Learnable Parallel Decoding for dLLMs, https://arxiv.org/abs/2509.26488

    commit = {i : H_i <= tau}, or the best-scored position if there is none (by default the least entropy)

H is the entropy of the model's own distribution in nats, whatever candidates are drawn from.

With `floor`, where fewer are below tau, the best-scored ones that a schedule asks for, as a CPU engine of LLaDA has it
("entropy exit", https://github.com/iafiscal1212/diffuse-cpp; tau 1.5, 16 steps, no blocks): of n open positions
max(1, round(n c_t)) at step t = 0, 1, ... of s,

    linear: c_t = 1 / (s - t)        cosine: c_t = 1 - cos(pi (t + 1) / 2s) / cos(pi t / 2s)

`steps` is for the whole canvas and is shared out over its blocks, at least one each.
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
from ...ops.rank import top
from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock


@dataclass
class State:
    """The schedule of each row's active block."""

    clock: BlockClock
    least: np.ndarray  # [B] the least number committed at the coming step


@register(
    "entropy_threshold",
    checked="golden/llada "
    "reference:reference.naive_masked.entropy_threshold reference:reference.naive_selects.EntropyFloor",
)
class EntropyThreshold(Select):
    default_propose = "entropy"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.45, 0.1, 0.2, 0.7)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.05, 0.1, 0.2, 0.45, 0.7, 1.0)}

    tau: Annotated[float, "greatest entropy of a committed position, in nats"] = 0.45
    floor: Annotated[Literal["linear", "cosine"] | None, "schedule of the fewest commits per step; none: one"] = None
    steps: Annotated[int, "steps of that schedule for the whole canvas"] = 16

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise SpecError(f"entropy_threshold: tau must be an entropy of at least 0 nats, got {self.tau}")
        self.require("steps", least=1)

    @property
    def provides(self) -> frozenset[Trait]:
        device = frozenset({Trait.NEEDS_NO_HOST})
        return device | {Trait.KEEPS_NO_STATE} if self.floor is None else device

    def start(self, canvas: Canvas) -> State | None:
        return None if self.floor is None else State(BlockClock.of(canvas), np.ones(len(canvas), np.int64))

    def skipped_steps(self, canvas: Canvas, state: State | None) -> np.ndarray:
        if state is not None:
            state.clock.enter(canvas, self.steps, canvas.step)
            steps, at = state.clock.steps, np.minimum(canvas.step - state.clock.start, state.clock.steps - 1)
            share = 1 / (steps - at)
            if self.floor == "cosine":
                share = 1 - np.cos(np.pi / 2 * (at + 1) / steps) / np.cos(np.pi / 2 * at / steps)
            state.least = np.maximum(np.floor(share * canvas.block_remaining + 0.5).astype(np.int64), 1)
        return np.zeros_like(canvas.step)

    def select(self, proposal: Proposal, canvas: Canvas, state: State | None) -> Tensor:
        low = (proposal.evidence.distribution.confidence.entropy <= self.tau) & proposal.eligible
        if state is None:
            return low  # in a row where none is low the loop adds the best
        least = upload(state.least, low.device)[:, None]
        return torch.where(low.sum(1, keepdim=True) >= least, low, top(proposal.score, least) & proposal.eligible)
