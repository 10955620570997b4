"""Commits by a cosine schedule, few tokens at first and many at last, the most confident under fading noise.

MaskGIT: Masked Generative Image Transformer, https://arxiv.org/abs/2202.04200

    after step i of s, floor(n cos(pi/2 (i+1)/s)) of a block's n tokens stay open, at least one fewer at each step
    commit the highest  ln p(candidate) + noise * f_i * g,  g standard Gumbel noise of each position and step
    f_i = 1 - (i+1)/s  (linear),  the product of those up to i  (product),  or 1  (none)

Lumina-DiMOO keeps its noise (anneal=none), and MMaDA multiplies it at every step by what is left of the time. All that
is open is committed at the last step, where MMaDA's loop returns its candidates. `steps` is for the whole canvas and is
shared out over its blocks, at least one each; pictures are one block. A step that would commit nothing commits one.
Exact: no.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...limits import MAX_SCALE
from ...ops.rank import top
from ...registry import register
from ...rng import gumbel, wide
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock, block_begin, total_steps

_LEAST = 1e-20  # smaller probabilities rank like this one


@dataclass
class State:
    """The schedule of each row's active block."""

    clock: BlockClock
    quota: np.ndarray  # [B] committed at the coming step
    factor: np.ndarray  # [B] the factor of the noise at the coming step


@register("maskgit", checked="reference:reference.naive_pictures.picture")
class MaskGIT(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (16, 8, 4)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (128, 64, 32, 16, 8)}

    steps: Annotated[int | None, "steps for the whole canvas; none: one per token"] = None
    noise: Annotated[float, "weight of the Gumbel noise that is added to ln p; 0 is off"] = 4.5
    anneal: Annotated[Literal["linear", "product", "none"], "how the noise fades over a block's steps"] = "linear"

    def __post_init__(self) -> None:
        self.require("steps", least=1)
        self.require("noise", least=0, most=MAX_SCALE)

    @property
    def conflicts(self) -> Reasons:
        if not self.noise:
            return {}
        log = "{me} adds noise to the logarithm of a probability, and the scores of {other} are none"
        return {Trait.SCORES_WITHOUT_PROBABILITY: Why(log, "write maskgit:noise=0, or another proposer")}

    def start(self, canvas: Canvas) -> State:
        return State(BlockClock.of(canvas), np.zeros(len(canvas), np.int64), np.zeros(len(canvas)))

    def total_steps(self, canvas: Canvas) -> np.ndarray:
        return total_steps(canvas, self.steps)

    def entry_step(self, canvas: Canvas) -> np.ndarray:
        return block_begin(canvas, self.steps)

    def skipped_steps(self, canvas: Canvas, state: State) -> np.ndarray:
        clock = state.clock
        clock.enter(canvas, self.steps, canvas.step)
        at = np.minimum(canvas.step - clock.start, clock.steps - 1)
        schedules = [_schedule(int(steps), self.anneal) for steps in clock.steps]
        share, factor = (
            np.array([each[number][step] for each, step in zip(schedules, at, strict=True)]) for number in (0, 1)
        )
        # The product is rounded in float32, as in the published loops.
        hold_block = np.floor(clock.tokens.astype(np.float32) * share.astype(np.float32)).astype(np.int64)
        hold_block = np.where(
            at < clock.steps - 1, np.clip(hold_block, 1, np.maximum(canvas.block_remaining - 1, 0)), 0
        )
        state.quota, state.factor = canvas.block_remaining - hold_block, factor
        return np.zeros_like(at)

    def select(self, proposal: Proposal, canvas: Canvas, state: State) -> Tensor:
        score = proposal.score
        if self.noise:
            uniform = proposal.evidence.request.source.uniform(
                canvas.rows, canvas.step, proposal.evidence.positions, "transfer"
            )
            weight = upload(torch.from_numpy(self.noise * state.factor).to(uniform.dtype), uniform.device)[:, None]
            score = wide(score.clamp(min=_LEAST)).log() + weight * gumbel(uniform)
            score = score.masked_fill(~proposal.eligible, -torch.inf)
        return top(score, upload(state.quota, score.device)[:, None])


@lru_cache(maxsize=64)
def _schedule(steps: int, anneal: str) -> tuple[np.ndarray, np.ndarray]:
    """The share of tokens that stay open after each step, float32, and the factor of its noise; [steps] each."""
    ratio = torch.arange(1, steps + 1) / steps
    left = 1 - np.arange(1, steps + 1) / steps
    factor = {"linear": left, "product": left.cumprod(), "none": np.ones(steps)}[anneal]
    return torch.cos(0.5 * math.pi * ratio).numpy(), factor
