"""Commits every candidate above a confidence threshold, and always the most confident one.

Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding,
https://arxiv.org/abs/2505.22618

    commit = {i : score_i >= tau}, or the best position if there is none

With `fall`, the threshold starts at 1 and falls by that much a forward until it reaches tau, as dInfer does beside its
iteration smoothing (https://arxiv.org/abs/2510.08666). With `relax` it falls as the block fills, as in Streaming-dLLM
(https://arxiv.org/abs/2601.17917): tau (1 - relax (1 - r)) where r is the share of the block's positions that are open.
Its authors count the masks that a pruned canvas still has after the block too.
Fast-dLLM's extra forward on a block that is complete already is left out.
Exact: no; tau = 1 leaves only the tokens that the model is certain of.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ...traits import NONE, Reasons, Trait, Why
from ..contracts import Canvas, MaskedSampler, Proposal, Select


@register(
    "threshold",
    checked="golden/dream golden/fast_dllm_v2 golden/llada "
    "reference:reference.naive_masked.threshold reference:reference.naive_selects.Relaxing",
)
class Threshold(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.9, 0.95, 0.97, 0.98, 0.99, 0.8, 0.7, 0.6, 0.5)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {
        "tau": (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.55, 0.5)
    }

    tau: Annotated[float, "least score, a probability (minus an entropy in nats with the entropy proposer)"] = 0.9
    fall: Annotated[float, "the threshold is max(tau, 1 - fall * forwards made); 0 is tau throughout"] = 0.0
    relax: Annotated[float, "share by which the threshold falls until its block is full; 0.3 and 0.4 are usual"] = 0.0

    def __post_init__(self) -> None:
        self.require("tau", most=1)
        self.require("fall", least=0, most=1, hint="fall=0.02 is dInfer's")
        self.require("relax", least=0, most=1)

    @property
    def provides(self) -> frozenset[Trait]:
        counts = frozenset({Trait.COUNTS_FORWARDS}) if self.fall > 0 else NONE
        return counts if self.fall or self.relax else frozenset({Trait.NEEDS_NO_HOST})

    @property
    def requires(self) -> Reasons:
        if self.tau >= 0:
            return {}
        negative = "a negative tau is minus an entropy in nats: use it with 'entropy+threshold'"
        return {Trait.SCORES_BY_ENTROPY: Why(f"threshold: tau must lie in [0, 1], got {self.tau}", negative)}

    def check(self, sampler: MaskedSampler) -> None:
        if self.tau < 0 < self.relax:
            raise SpecError(
                f"threshold: relax={self.relax} would raise a negative tau={self.tau}", hint="leave one of them out"
            )

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        # If no position of a row passes, the loop adds the most confident one.
        if not self.fall and not self.relax:
            return proposal.score >= self.tau
        least = np.maximum(self.tau, 1 - self.fall * canvas.nfe) if self.fall else np.full(len(canvas), self.tau)
        least = least * (1 - self.relax * (1 - canvas.block_remaining / (canvas.block_end - canvas.block_start)))
        return proposal.score >= upload(least.astype(np.float32), proposal.score.device)[:, None]
