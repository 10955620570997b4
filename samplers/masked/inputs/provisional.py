"""Feeds confident candidates of open positions as tokens, which stay open and are predicted again.

DC-Leap, https://arxiv.org/abs/2607.20467 (provisional drafts)

    open position, p(likeliest token) >= tau, no end token:  the next forward is fed this token in place of the mask

A provisional token gives its neighbours context before it is committed; it can change, and falls back to the mask once
its probability is below tau. It is an input only: the canvas has the mask there. The select commits as always; it is
published with `leap`, whose run is the only part of the text that is committed.

A model that was trained to predict masks may copy the tokens that it is fed, so that a provisional one never changes.
With `alternate`, which is not the paper's, each is fed as a mask at every second forward, even and odd positions in
turn, and only predictions from a mask decide: about what is fed, and about what is committed, for which the one of the
forward before stands at positions that are fed a token.
Exact: no, except with tau above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...host_transfer import upload
from ...ops.distribution import DenseDistribution, Distribution
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Evidence, Inputs


@dataclass
class Drafts:
    """The provisional tokens of the active block."""

    ids: Tensor  # [B, W] int64; -1 for none
    fed: Tensor  # [B, W] bool: fed as a token in the current forward
    forwards: Tensor  # [B] int64
    change: Tensor | None = None  # [B, W, E]: what is added to a mask's embedding; None before the first forward
    logits: Tensor | None = None  # [B, W, V] of the last forward; with `alternate` from masks alone


@register("provisional", checked="reference:samplers.masked.test_provisional.naive")
class Provisional(Inputs):
    conflicts: ClassVar[Reasons] = {
        **Inputs.conflicts,
        Trait.RANDOM_CANVAS: Why("{me} mixes in the mask's embedding, and {other} has no mask token", "leave {me} out"),
    }

    tau: Annotated[float, "least probability of a provisional token; above 1: none"] = 0.98
    alternate: Annotated[bool, "feed each as a mask at every second forward"] = False

    def __post_init__(self) -> None:
        self.require("tau", least=0)

    def start(self, canvas: Canvas) -> Drafts:
        none = torch.full_like(canvas.window, -1)
        return Drafts(none, torch.zeros_like(none, dtype=torch.bool), torch.zeros_like(none[:, 0]))

    def soft(self, canvas: Canvas, state: Drafts) -> Tensor | None:
        if state.change is None or self.tau > 1:
            return None
        begun = upload(~canvas.block_started, state.ids.device)[:, None]
        state.fed = canvas.eligible & (state.ids >= 0) & begun
        if self.alternate:
            state.fed &= (canvas.window + state.forwards[:, None]) % 2 == 0
        return state.change * state.fed[..., None]

    def observe(
        self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Drafts
    ) -> Distribution | None:
        state.forwards = state.forwards + 1
        if self.tau > 1:
            return None
        distribution, decided = evidence.distribution, evidence.predicted
        if self.alternate:
            if state.logits is not None:
                known = torch.where(state.fed[..., None], state.logits, evidence.logits)
                distribution, decided = DenseDistribution(known), decided | state.fed
            state.logits = distribution.logits
        ids, probability = distribution.greedy
        draft = decided & (probability >= self.tau)
        for end in evidence.request.stop_ids:
            draft &= ids != end
        state.ids = torch.where(draft, ids, -1)
        vocab = evidence.distribution.vocab
        token = embed(one_hot(state.ids.clamp(min=0), vocab).float()).float()
        mask = embed(one_hot(torch.full_like(ids[:1, :1], canvas.mask_id), vocab).float()).float()
        state.change = token - mask
        return distribution
