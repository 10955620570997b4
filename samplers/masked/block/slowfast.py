"""Slow and fast phases: a few forwards find how far the model is confident, then only that span is decoded.

Accelerating Diffusion Large Language Models with SlowFast Sampling: The Three Golden Principles,
https://arxiv.org/abs/2506.10848

    slow:  the rest of the block competes; e = 1 + the farthest position with p >= tau, at least one further than s
           until the last two e have a standard deviation below 1, or for `steps` forwards; the stretch is [s, e),
           e the last one, or the mean of the two if they never agreed
    fast:  only [s, e) competes, until it is complete; then s = e

p is the probability of the likeliest token; the paper commits by `threshold:tau=0.9` in both phases.
Deviates from the published code, which makes all `steps` forwards of the slow phase (`all=true`), and in the fast phase
feeds nothing after the stretch: use a cache such as `dual`.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from ...registry import register
from ..contracts import Block, Canvas, Evidence, Span


@dataclass
class State:
    """The phase and span of each row; [B] arrays."""

    begin: np.ndarray  # where the span begins
    end: np.ndarray  # where it ends, once it is known
    fast: np.ndarray  # bool
    step: np.ndarray  # forwards of the slow phase
    last: np.ndarray  # the previous estimate of the end


@register("slowfast", checked="reference:reference.naive_blocks.SlowFast")
class SlowFast(Block):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.3, 0.5), "steps": (6, 3)}

    tau: Annotated[float, "least probability of the farthest position in the span of the fast phase"] = 0.3
    steps: Annotated[int, "most forwards of a slow phase"] = 6
    all: Annotated[bool, "every slow phase makes all `steps` forwards, as the published code does"] = False

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("steps", least=2)

    def start(self, canvas: Canvas) -> State:
        zero = np.zeros_like(canvas.block_start)
        return State(canvas.prompt.copy(), zero.copy(), zero.astype(bool), zero.copy(), zero.copy())

    def span(self, canvas: Canvas, state: State) -> Span:
        # A stretch is complete, or the slow phase itself has committed all of the block.
        over = (canvas.first_open >= state.end) & state.fast
        size = canvas.block_length
        block_end = np.minimum(canvas.origin + ((state.begin - canvas.origin) // size + 1) * size, canvas.total)
        over = over | (~state.fast & (canvas.first_open >= block_end))
        block_started = over | (canvas.nfe == 0)
        state.begin = np.where(block_started, canvas.first_open, state.begin)
        state.fast = state.fast & ~over
        state.step = np.where(over, 0, state.step)
        block_end = np.minimum(canvas.origin + ((state.begin - canvas.origin) // size + 1) * size, canvas.total)
        return Span(state.begin, np.where(state.fast, state.end, block_end), block_started)

    def narrow(self, evidence: Evidence, canvas: Canvas, state: State) -> Span | None:
        if state.fast.all():
            return None
        _, probability = evidence.distribution.greedy
        sure = evidence.eligible & (probability >= self.tau)
        farthest = torch.where(sure, evidence.positions, -1).amax(1)
        last = canvas.block_end
        canvas.read_later({"farthest": farthest}, lambda read: self._estimate(read["farthest"], last, state))
        return None

    def _estimate(self, farthest: np.ndarray, last: np.ndarray, state: State) -> None:
        """Notes the end that a forward of the slow phase finds, given the `farthest` confident position [B]."""
        end = np.minimum(np.maximum(farthest, state.begin) + 1, last)
        step = state.step + 1
        agree = (step > 1) & (np.abs(end - state.last) < 2)  # the deviation of two numbers is half their distance
        mean = np.where(agree | (step == 1), end, (end + state.last) // 2)
        ready = ~state.fast & ((agree & (not self.all)) | (step >= self.steps))
        slow = ~state.fast
        state.end = np.where(ready, mean, state.end)
        state.last, state.step = np.where(slow, end, state.last), np.where(slow, step, state.step)
        state.fast = state.fast | ready
