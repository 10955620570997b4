"""Commits the confident candidates of a fixed quota and adds the rest of the quota to the next step's.

Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding (its Dream without a
cache), https://arxiv.org/abs/2505.22618

    candidates = the best q + carry;  commit the best one, and the others with score >= tau;  carry = the rest

q is an even share of a block's tokens over its steps; after the last step only the carry remains. The
published loop takes n // s throughout and leaves n % s tokens masked; here the first steps take one more. It knows no
blocks; here `steps` is for the whole canvas and is shared out over its blocks, at least one each.
Dream scores from the filtered distribution: `confidence:of=filtered`.
Exact: no; tau = 1 with one token a step leaves the best one at each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import descending
from ...registry import register
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock, even_share


@dataclass
class State:
    """The quota of each row's active block."""

    clock: BlockClock
    quota: np.ndarray  # [B] the coming step's quota, without the carried part
    carried: Tensor  # [B, 1] int64


@register("carry", checked="golden/dream reference:reference.naive_schedules.carry")
class Carry(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (16, 8, 4)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (128, 64, 32, 16, 8)}

    tau: Annotated[float, "least score of the candidates after the best, a probability"] = 0.9
    steps: Annotated[int | None, "steps for the whole canvas; none: one per token"] = None

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("steps", least=1)

    def start(self, canvas: Canvas) -> State:
        carried = torch.zeros(len(canvas), 1, dtype=torch.int64, device=canvas.tokens.device)
        return State(BlockClock.of(canvas), np.zeros(len(canvas), np.int64), carried)

    def skipped_steps(self, canvas: Canvas, state: State) -> np.ndarray:
        clock = state.clock
        clock.enter(canvas, self.steps, canvas.step)
        if canvas.block_started.any():
            state.carried = state.carried.masked_fill(upload(canvas.block_started, state.carried.device)[:, None], 0)
        at = canvas.step - clock.start
        state.quota = even_share(clock.tokens, clock.steps, at)
        return np.zeros_like(at)

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        _, rank = descending(proposal.score)
        candidates = state.carried + upload(state.quota, rank.device)[:, None]
        within = (rank < candidates) & proposal.eligible
        chosen = within & ((rank == 0) | (proposal.score >= self.tau))
        state.carried = candidates - chosen.sum(1, keepdim=True)
        return chosen
