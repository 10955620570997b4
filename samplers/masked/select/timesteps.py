"""Commits by Dream's schedule: at each step a share of the open positions set by the clock, highest scores first.

Dream 7B: Diffusion Large Language Models, https://arxiv.org/abs/2508.15487

    t_0 = 1 > ... > t_s = eps, evenly;  commit int(n (1 - t_(i+1) / t_i)) of n open tokens at step i, all at the last
    with alg_temp: positions drawn without replacement by softmax(score / alg_temp) instead of the best

`steps` is for the whole canvas and is shared out over its blocks, at least one each; Dream itself decodes the canvas as
one block. A step that commits nothing moves the clock on and makes no forward. The count is each row's own, where the
published loop takes the batch's mean. `reference=true` breaks ties of the score as torch.topk does over the canvas row.
Dream scores from the filtered distribution: `confidence:of=filtered`, `margin:of=filtered` or `entropy:of=filtered`.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...limits import RANGE, divides
from ...ops.rank import top, top_as_published
from ...registry import register
from ...rng import gumbel, wide
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock, commit_share, total_steps


@dataclass
class State:
    """The schedule of each row's active block."""

    clock: BlockClock
    share: np.ndarray  # [B, K] float32: the share of open positions that each step commits
    quota: np.ndarray  # [B] committed at the coming step


@register("timesteps", checked="golden/dimple golden/dream reference:reference.naive_schedules.timesteps")
class Timesteps(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (16, 8, 4)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (128, 64, 32, 16, 8)}

    steps: Annotated[int | None, "steps for the whole canvas; none: one per token"] = None
    eps: Annotated[float, "diffusion time at which the schedule ends"] = 1e-3
    alg_temp: Annotated[float | None, "draw positions by softmax(score / alg_temp); none or 0 takes the best"] = None
    reference: Annotated[bool, "order equal scores as the published code does"] = False

    def __post_init__(self) -> None:
        self.require("steps", least=1)
        if not 0 <= self.eps < 1:
            raise SpecError(f"timesteps: eps must lie in [0, 1), got {self.eps}")
        if self.alg_temp is not None and not 0 <= self.alg_temp < float("inf"):
            raise SpecError(f"timesteps: alg_temp must be at least 0, got {self.alg_temp}")
        if self.alg_temp is not None and not divides(self.alg_temp):
            raise SpecError(f"timesteps: alg_temp must be {RANGE}, got {self.alg_temp}")

    def start(self, canvas: Canvas) -> State:
        return State(BlockClock.of(canvas), np.ones((len(canvas), 1), np.float32), np.zeros(len(canvas), np.int64))

    def total_steps(self, canvas: Canvas) -> np.ndarray:
        return total_steps(canvas, self.steps)

    def skipped_steps(self, canvas: Canvas, state: State) -> np.ndarray:
        clock = state.clock
        clock.enter(canvas, self.steps, canvas.step)
        if canvas.block_started.any():
            state.share = commit_share(clock.steps, self.eps)
        at = np.minimum(canvas.step - clock.start, clock.steps - 1)
        counts = (canvas.block_remaining[:, None].astype(np.float32) * state.share).astype(np.int64)
        positive = (counts >= 1) & (np.arange(counts.shape[1]) >= at[:, None])
        first = positive.argmax(1)  # the last step commits everything that is open
        state.quota = counts[np.arange(len(canvas)), first]
        return np.where(positive.any(1), first - at, 0)  # a stage that revises may hold a row with nothing open

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        score = proposal.score
        if self.alg_temp:  # the highest of score / alg_temp + Gumbel noise are a draw without replacement
            source = proposal.evidence.request.source
            uniform = source.uniform(canvas.rows, canvas.step, proposal.evidence.positions, "transfer")
            score = wide(score) / self.alg_temp + gumbel(uniform)
        if self.reference:
            return top_as_published(score, state.quota, canvas.window_host, canvas.total)
        return top(score, upload(state.quota, score.device)[:, None])
