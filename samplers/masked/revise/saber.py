"""Masks again the tokens whose probability has fallen the most, so that more can be committed at a step.

Saber: An Efficient Sampling with Adaptive Acceleration and Backtracking Enhanced Remasking for Diffusion Language
Model, https://arxiv.org/abs/2510.18165

    take back max(least // 2, ceil(c / 8)) of the block's tokens, but less than the c that the step commits:
    those of the smallest p_i now - p_i one forward before, where p_i is the probability of the token at i

Those that the step commits are among them, with the probability of their candidates. A step that completes its block
takes nothing back. Without a select in the spec, `above_mean:least=<least>` is taken.

Deviates from the authors' code, which compares the probability of the likeliest token at i, whichever that is
(`reference=true`), takes tokens of earlier blocks back too, and compares a later block's first step with nothing; here
its probabilities before are 0, as in the first block.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.rank import top
from ...registry import register
from ..contracts import Canvas, Proposal, Revise, Revision

_EVERY = 8  # one token is masked again per this many committed at a step


@dataclass
class Before:
    """[B, W] float32: the probability of each token of the active block in the previous forward."""

    probability: Tensor


@register("saber", checked="reference:reference.naive_revise.saber")
class Saber(Revise):
    least: Annotated[int, "fewest positions that a step commits, where the spec names no select"] = 2
    reference: Annotated[bool, "compare probabilities of the likeliest token, not of the committed one"] = False

    def __post_init__(self) -> None:
        self.require("least", least=1)

    @property
    def default_select(self) -> str:
        return f"above_mean:least={self.least}"

    def start(self, canvas: Canvas) -> Before:
        return Before(torch.zeros(canvas.window.shape, dtype=torch.float32, device=canvas.tokens.device))

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Before) -> Revision:
        ours, device = canvas.committed, chosen.device
        tokens = proposal.tokens
        if not self.reference:
            tokens = torch.where(ours, canvas.tokens.gather(1, canvas.window), tokens)
        now = proposal.evidence.distribution.probability(tokens)
        block_started, left = (upload(each, device)[:, None] for each in (canvas.block_started, canvas.block_remaining))
        rise = now - state.probability.masked_fill(block_started, 0)
        state.probability = now
        count = chosen.sum(1, keepdim=True)
        most = torch.minimum(((count + _EVERY - 1) // _EVERY).clamp(min=self.least // 2), count - 1)
        fallen = top((-rise).masked_fill(~(ours | chosen), -torch.inf), most.masked_fill(count == left, 0))
        return Revision(reopen=fallen)
