"""Commits positions at random, each with the probability that Dream's schedule gives the step.

Dream 7B: Diffusion Large Language Models ("origin"), https://arxiv.org/abs/2508.15487

    t_0 = 1 > ... > t_s = eps, evenly;  commit = {i : u_i < 1 - t_(k+1) / t_k} at step k, all that is open at the last

u_i is drawn afresh at every step. At a step where no position is drawn the next forward would be the same, so that one
forward serves both and the clock moves on. `steps` is for the whole canvas and is shared out over its
blocks, at least one each; Dream itself decodes the canvas as one block. The score plays no part.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock, commit_share, total_steps

_AHEAD = 16  # steps that are drawn at once


@dataclass
class State:
    """The schedule of each row's active block."""

    clock: BlockClock
    share: np.ndarray  # [B, K] float32, the probability at each step
    idle: np.ndarray  # [B] further steps that use the last forward


@register("origin", checked="golden/dream reference:reference.naive_schedules.origin")
class Origin(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (16, 8, 4)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (128, 64, 32, 16, 8)}

    steps: Annotated[int | None, "steps for the whole canvas; none: one per token"] = None
    eps: Annotated[float, "diffusion time at which the schedule ends"] = 1e-3

    def __post_init__(self) -> None:
        self.require("steps", least=1)
        if not 0 <= self.eps < 1:
            raise SpecError(f"origin: eps must lie in [0, 1), got {self.eps}")

    def start(self, canvas: Canvas) -> State:
        return State(BlockClock.of(canvas), np.ones((len(canvas), 1), np.float32), np.zeros(len(canvas), np.int64))

    def total_steps(self, canvas: Canvas) -> np.ndarray:
        return total_steps(canvas, self.steps)

    def skipped_steps(self, canvas: Canvas, state: State) -> np.ndarray:
        idle, state.idle = state.idle, np.zeros_like(state.idle)
        state.clock.enter(canvas, self.steps, canvas.step + idle)
        if canvas.block_started.any():
            state.share = commit_share(state.clock.steps, self.eps)
        return idle

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        # The draw is made on the host, which has the clock, so that it never waits for a GPU.
        at = np.minimum(canvas.step - state.clock.start, state.clock.steps - 1)
        chosen, complete = np.zeros_like(canvas.eligible_host), ~canvas.eligible_host.any(1)
        for ahead in range(0, int((state.clock.steps - at).max()), _AHEAD):
            hits = self._draw(proposal, canvas, state, at, ahead)  # [B, steps, W]
            first, new = hits.any(2).argmax(1), hits.any((1, 2)) & ~complete
            chosen[new] = hits[new, first[new]]
            state.idle = np.where(new, ahead + first, state.idle)
            complete |= new
            if complete.all():
                break
        return upload(chosen, proposal.score.device)

    def _draw(self, proposal: Proposal, canvas: Canvas, state: State, at: np.ndarray, ahead: int) -> np.ndarray:
        """The open positions that are committed at each of the steps from `ahead` on."""
        later = ahead + np.arange(_AHEAD)
        step = canvas.step[:, None] + later
        positions = torch.from_numpy(canvas.window_host.repeat(_AHEAD, 0))
        source = proposal.evidence.request.source
        uniform = source.uniform(canvas.rows.repeat(_AHEAD), step.ravel(), positions, "transfer").numpy()
        last = state.share.shape[1] - 1  # past a row's own steps the share is 1
        share = np.take_along_axis(state.share, np.minimum(at[:, None] + later, last), 1)
        hits: np.ndarray = (uniform.reshape(*step.shape, -1) < share[..., None]) & canvas.eligible_host[:, None]
        return hits
