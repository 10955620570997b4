"""Overwrites committed tokens that the model has become sure are others, and goes on doing so when nothing is open.

LLaDA2.1: Speeding Up Text Diffusion via Token Editing, https://arxiv.org/abs/2602.08676

    edit = {j committed : argmax_j != x_j and p(argmax_j) > tau}

at every step, beside the select's commits. A complete block gets up to `post` more forwards, until one changes nothing.

The penalty that some engines subtract from the previous token's logit is not applied.
Exact: no; `tau=1` edits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...registry import register
from ..contracts import Canvas, Proposal, Revise, Revision, Writing


@dataclass
class State:
    """Forwards on each row's complete block so far, [B]."""

    forwards: np.ndarray


@register("edit", stage="revise", paper="arXiv:2602.08676", checked="reference")
@dataclass(frozen=True)
class Edit(Revise):
    tau: Annotated[float, "an edit needs more probability than this"] = 0.9
    post: Annotated[int, "most forwards on a block that is complete"] = 16

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("post", least=0)

    @property
    def idle(self) -> bool:
        return self.tau == 1

    def start(self, canvas: Canvas) -> State:
        return State(np.zeros(len(canvas), dtype=np.int64))

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: State) -> Revision:
        ids, probability = proposal.evidence.distribution.greedy
        changes = canvas.committed & (ids != canvas.tokens.gather(1, canvas.window)) & (probability > self.tau)
        # Counts on the host, which decides whether the next block is entered.
        new, changed = torch.stack([chosen.sum(1), changes.sum(1)]).cpu().numpy()
        again = canvas.stays
        state.forwards = np.where(again, state.forwards + 1, 0)
        complete = canvas.left == new
        hold = complete & (state.forwards < self.post) & (~again | (changed > 0))
        return Revision(rewrite=Writing(changes, ids, probability), hold=hold)
