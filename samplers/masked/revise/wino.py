"""Commits many tokens at a low threshold and masks those that fail a leave-one-out check.

Wide-In, Narrow-Out: Revokable Decoding for Efficient and Effective DLLMs, https://arxiv.org/abs/2507.18578

    draft   = {i : p_i >= draft}, at most clamp(floor(0.7 m), 5, 20) of m open positions, and always the surest
    revoked = {j committed : p(x_j | all but j) < verify}, where more than one was drafted;
              if they are as many as the step before drafted, the least believed of them, one fewer than that

Every forward appends a shadow of the block to the canvas: masks at the block's positions, each of which sees the whole
canvas but its own token, and which the canvas does not see; their predictions are the leave-one-out check. Without a
select in the spec, `threshold:tau=<draft>` is taken; `verify=0` never revokes, leaves the shadow out, and is that
select.

Deviates from the authors' code: a probability equal to `draft` is drafted; the count of the step before starts anew
with each block; in a shifted family the shadow of position p stands at p - 1, as its prediction does.
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
from ...traits import Trait
from ..contracts import Canvas, Proposal, Revise, Revision

_FIRST = 30  # tokens that count as drafted before a block's first step
_SHARE, _LEAST, _MOST = 0.7, 5, 20  # a step may draft this share of the open positions; its bounds


@dataclass
class State:
    """[B, 1] int64: the number of tokens that each row's previous step drafted."""

    before: Tensor


@register("wino", checked="reference:reference.naive_revise.wino")
class Wino(Revise):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"draft": (0.6, 0.7, 0.8)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"draft": (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)}

    draft: Annotated[float, "least probability of a drafted candidate, where the spec names no select"] = 0.6
    verify: Annotated[float, "least leave-one-out probability of a committed token; 0 never revokes"] = 0.9

    def __post_init__(self) -> None:
        self.require("draft", "verify", least=0, most=1)

    @property
    def default_select(self) -> str:
        return f"threshold:tau={self.draft}"

    @property
    def provides(self) -> frozenset[Trait]:
        return frozenset({Trait.LEAVE_ONE_OUT if self.verify else Trait.IDLE})

    def start(self, canvas: Canvas) -> State:
        return State(torch.full((len(canvas), 1), _FIRST, device=canvas.tokens.device))

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: State) -> Revision:
        leave_one_out = proposal.evidence.leave_one_out
        assert leave_one_out is not None, "the loop gives it to a stage that needs it"
        device = chosen.device
        block_started = upload(canvas.block_started, device)[:, None]
        before = state.before.masked_fill(block_started, _FIRST)
        most = np.clip((_SHARE * canvas.block_remaining).astype(np.int64), _LEAST, _MOST)
        ranked = proposal.score.masked_fill(~chosen, -torch.inf)
        allowed = top(ranked, upload(most, device)[:, None]) & chosen
        drafted = allowed.sum(1, keepdim=True)
        confidence = leave_one_out.probability(canvas.tokens.gather(1, canvas.window))
        doubtful = canvas.committed & (confidence < self.verify) & (drafted > 1)
        count = doubtful.sum(1, keepdim=True)
        count = torch.where(count >= before, before - 1, count)
        reopen = top((-confidence).masked_fill(~doubtful, -torch.inf), count) & doubtful
        state.before = torch.where(drafted > 0, drafted, before)
        return Revision(reopen=reopen | (chosen & ~allowed))
