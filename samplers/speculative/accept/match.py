"""Samples each next token from the target's distribution and accepts a drafted token equal to the sample.

Accelerating Transformer Inference for Translation via Parallel Decoding, https://arxiv.org/abs/2305.10427 (with seeds)
Inference with Reference, https://arxiv.org/abs/2304.04487

    y ~ p(. | node);  descend to the child that holds y, else y is the next token

With `noise=seeded` the sample is argmax(log p + G) with Gumbel noise G fixed per absolute position, so that every round
samples a position with the same noise. Jacobi iterations need this to converge under sampling.

Deviates from the papers: any draft can be verified, trees included.
Exact: distribution. At temperature 0 it is `greedy`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...registry import register
from ...rng import gumbel, wide
from ...traits import Trait
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from .greedy import follow


@register("match", exact="distribution", checked="reference:samplers.speculative.test_match.naive joint")
class Match(Acceptance):
    noise: Annotated[
        Literal["fresh", "seeded"], "fresh: new noise per round; seeded: one noise per position for the whole request"
    ] = "fresh"

    @property
    def provides(self) -> frozenset[Trait]:
        pick = frozenset({Trait.FOLLOWS_PICK})
        return pick | {Trait.SEEDED} if self.noise == "seeded" else pick

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return follow(
            draft, distributions.pick if distributions.greedy else self.sample(draft, distributions, uniforms)
        )

    def sample(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms) -> Tensor:
        """[B, T] int64: a sample after each node; nodes at one position share their noise."""
        width = distributions.logits.shape[-1]
        deepest = draft.width - 1 if draft.parents is None else draft.deepest
        levels = torch.arange(1, deepest + 2, device=distributions.logits.device)
        where = draft.start[:, None] + levels  # the position that each level predicts
        noise = gumbel(uniforms.noise(where, "match", width, fixed=self.noise == "seeded"))
        if draft.parents is not None:
            noise = noise.gather(1, draft.depth.clamp(max=deepest)[..., None].expand(-1, -1, width))
        return (wide(torch.log_softmax(distributions.logits, -1)) + noise).argmax(-1)
