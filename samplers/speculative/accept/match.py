"""Draws each next token from the target's law and accepts the draft where it holds just that token.

Accelerating Transformer Inference for Translation via Parallel Decoding, https://arxiv.org/abs/2305.10427 (with seeds)
Inference with Reference, https://arxiv.org/abs/2304.04487

    y ~ p(. | node);  descend to the child that holds y, else y is the next token

With `noise=seeded` the draw is argmax(log p + G) with Gumbel noise G fixed per absolute position, so that the same
position draws alike in every round: what Jacobi iterations need to converge under sampling.

Deviates from the papers: it verifies any draft, trees included.
Exact: distribution. At temperature 0 it is `greedy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from ...ops.verification import follow
from ...registry import register
from ...rng import gumbel, wide
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict


@register("match", stage="accept", paper="arXiv:2305.10427", exact="distribution", checked="reference joint")
@dataclass(frozen=True)
class Match(Acceptance):
    follows_pick: ClassVar[bool] = True

    noise: Annotated[Literal["fresh", "seeded"], "seeded: one noise per position for the whole request"] = "fresh"

    @property
    def seeded(self) -> bool:
        return self.noise == "seeded"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return follow(
            draft, distributions.pick if distributions.greedy else self.sampled(draft, distributions, uniforms)
        )

    def sampled(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms) -> Tensor:
        """[B, T] int64: a draw from the law behind each node; alike at equal nodes of one position."""
        width = distributions.logits.shape[-1]
        deepest = draft.width - 1 if draft.parents is None else draft.deepest
        levels = torch.arange(1, deepest + 2, device=distributions.logits.device)
        where = draft.start[:, None] + levels  # the positions that the laws are of, one a level
        noise = gumbel(uniforms.noise(where, "match", width, fixed=self.noise == "seeded"))
        if draft.parents is not None:
            noise = noise.gather(1, draft.depth.clamp(max=deepest)[..., None].expand(-1, -1, width))
        return (wide(torch.log_softmax(distributions.logits, -1)) + noise).argmax(-1)
