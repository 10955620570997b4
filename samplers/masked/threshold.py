"""Commits every candidate that is sure enough, and always the surest.

Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding,
https://arxiv.org/abs/2505.22618

    commit = {i : score_i >= tau}, or the best position if there is none

A forward that its reference spends on a block it has finished already is not made.
Exact: no; tau = 1 leaves only what the model is certain of.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.contracts import Canvas, Proposal, Sampler
from pardec.samplers.registry import register


@register("threshold", stage="select", paper="arXiv:2505.22618")
@dataclass(frozen=True)
class Threshold:
    tau: float = 0.9  # least score, a probability (minus an entropy in nats with the entropy proposer)

    def __post_init__(self) -> None:
        if not self.tau <= 1:
            raise SpecError(f"threshold: tau must be at most 1, got {self.tau}")

    def check(self, sampler: Sampler) -> None:
        if self.tau < 0 and all(part.name != "entropy" for part in sampler.spec.parts):
            raise SpecError(
                f"threshold: tau must lie in [0, 1], got {self.tau}",
                hint="a negative tau is minus an entropy in nats and goes with 'entropy+threshold'",
            )

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        # The surest position of a row that passes nowhere is the loop's to add.
        return proposal.score >= self.tau
