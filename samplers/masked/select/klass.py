"""Commits confident candidates whose distributions are stable between forwards.

KLASS: KL-Guided Fast Inference in Masked Diffusion Models, https://arxiv.org/abs/2511.05664

    commit = {i : score_i > tau and KL(p_i now || p_i one step before) < kl at each of the last `history` steps};
    if there is none, the q best-scored ones

q is 1; with `steps`, as published, the even share of the block's tokens at this step, for the whole canvas and shared
out over its blocks as `fixed` does. A position can first pass at step `history` + 1 of its block: divergences from
before the block, or from before a position was reopened, count as infinite. The published code keeps two matrices of
the whole canvas in float64, this one the distributions of the active block in float32.
Exact: no; `kl=0` is `sequential`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...ops.rank import top
from ...registry import register
from ..contracts import Canvas, Proposal, Select
from ..ops.schedule import BlockClock, even_share

_LEAST = 1e-12  # added to a probability before its logarithm


@dataclass
class Past:
    """The active block's earlier distributions."""

    log_probabilities: Tensor | None  # [B, W, V] float32, of the previous step
    known: Tensor  # [B, W] bool: the positions with log-probabilities
    divergences: Tensor  # [B, W, H] float32: the last H divergences in nats
    clock: BlockClock


@register("klass", checked="reference:reference.naive_selects.Klass")
class Klass(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.9, 0.7), "kl": (0.01, 0.1), "history": (2, 1)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)}

    tau: Annotated[float, "score above which a position is confident, a probability"] = 0.9
    kl: Annotated[float, "KL divergence between steps below which it is stable, in nats"] = 0.01
    history: Annotated[int, "steps for which it must be stable"] = 2
    steps: Annotated[
        int | None, "if nothing passes, commit by a schedule of this many steps for the whole canvas; none: one token"
    ] = None

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        if not self.kl >= 0:
            raise SpecError(f"klass: kl must be a divergence of at least 0 nats, got {self.kl}")
        self.require("history", least=1)
        self.require("history", most=1024)  # every position stores this many divergences
        self.require("steps", least=1)

    def start(self, canvas: Canvas) -> Past:
        shape, device = canvas.window.shape, canvas.tokens.device
        divergences = torch.full((*shape, self.history), torch.inf, dtype=torch.float32, device=device)
        return Past(None, torch.zeros(shape, dtype=torch.bool, device=device), divergences, BlockClock.of(canvas))

    def select(self, proposal: Proposal, canvas: Canvas, state: Past) -> Tensor:
        eligible = proposal.eligible
        known = state.known & eligible & upload(~canvas.block_started, eligible.device)[:, None]
        probabilities = proposal.evidence.logits.softmax(-1)
        now = (probabilities + _LEAST).log_()
        before = now if state.log_probabilities is None else state.log_probabilities
        divergence = (probabilities * (now - before)).sum(-1).clamp(min=0).masked_fill(~known, torch.inf)
        state.log_probabilities, state.known = now, eligible
        state.divergences = torch.cat((state.divergences[..., 1:], divergence[..., None]), -1)
        passes = (state.divergences < self.kl).all(-1) & (proposal.score > self.tau)
        if self.steps is None:
            return passes  # in a row where none passes the loop adds the best
        clock = state.clock
        clock.enter(canvas, self.steps, canvas.step)
        quota = np.maximum(even_share(clock.tokens, clock.steps, canvas.step - clock.start), 1)
        rest = top(proposal.score, upload(quota, eligible.device)[:, None]) & eligible
        return torch.where(passes.any(1, keepdim=True), passes, rest)
