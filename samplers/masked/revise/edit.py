"""Overwrites committed tokens when the model becomes confident in other tokens, also after the block is complete.

LLaDA2.1: Speeding Up Text Diffusion via Token Editing, https://arxiv.org/abs/2602.08676

    edit = {j committed : argmax_j != x_j and p(argmax_j) > tau}

at every step, beside the select's commits. A complete block gets up to `post` more forwards, until one changes nothing;
with `steps`, none where filling it took that many, as in diffusers. `of=filtered` takes the token that was drawn, where
it differs, by its probability after temperature and filters, as the published loop does when it samples. With `sure`, a
complete block whose tokens all have that much probability gets no more forwards, as in DMax
(https://arxiv.org/abs/2604.08302), whose edits are `tau=0`.

The penalty that some engines subtract from the previous token's logit is not applied.
Exact: no; `tau=1` edits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...registry import register
from ...traits import NONE, Trait
from ..contracts import Canvas, Proposal, Revise, Revision, Update


@dataclass
class State:
    """[B]: the number of forwards on each row's complete block so far."""

    forwards: np.ndarray
    begun: np.ndarray  # the clock when the block was entered


@register("edit", checked="golden/llada2 reference:reference.naive_revise.edit")
class Edit(Revise):
    tau: Annotated[float, "an edit needs a new token of more than this probability"] = 0.9
    post: Annotated[int, "most further forwards on a complete block"] = 16
    steps: Annotated[
        int | None, "a block that took this many forwards to fill gets no further ones; none: no limit"
    ] = None
    of: Annotated[Literal["raw", "filtered"], "the argmax of the model's distribution, or the token drawn"] = "raw"
    sure: Annotated[
        float | None, "a complete block ends if all its tokens have this probability; none: no such rule"
    ] = None

    def __post_init__(self) -> None:
        self.require("tau", "sure", least=0, most=1)
        self.require("post", least=0)
        self.require("steps", least=1)

    @property
    def provides(self) -> frozenset[Trait]:
        return frozenset({Trait.IDLE}) if self.tau == 1 else NONE

    def start(self, canvas: Canvas) -> State:
        return State(*(np.zeros(len(canvas), dtype=np.int64) for _ in range(2)))

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: State) -> Revision:
        distribution, tokens = proposal.evidence.measured(self.of), canvas.tokens.gather(1, canvas.window)
        ids = proposal.tokens if self.of == "filtered" else distribution.greedy[0]
        probability = distribution.probability(ids)
        changes = canvas.committed & (ids != tokens) & (probability > self.tau)
        again = canvas.hold_block
        state.forwards = np.where(again, state.forwards + 1, 0)
        state.begun = np.where(canvas.block_started, canvas.step, state.begun)
        may = state.forwards < self.post
        if self.steps is not None:
            may &= again | (canvas.step + 1 - state.begun < self.steps)
        remaining, may_hold, first = (upload(each, chosen.device) for each in (canvas.block_remaining, may, ~again))
        hold = (chosen.sum(1) == remaining) & may_hold & (first | changes.any(1))
        if self.sure is not None:
            standing = torch.where(changes, ids, torch.where(chosen, proposal.tokens, tokens))
            hold &= ((canvas.committed | chosen) & (distribution.probability(standing) < self.sure)).any(1)
        return Revision(rewrite=Update(changes, ids, probability), hold=hold)
