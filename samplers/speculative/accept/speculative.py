"""Accepts with probability min(1, p/q); after a rejection the next token is sampled from the residual of p.

Fast Inference from Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192
Accelerating Large Language Model Decoding with Speculative Sampling, https://arxiv.org/abs/2302.01318

    x ~ q accepted  iff  u q(x) < p(x);  at the first rejection  next ~ norm([p - q]+),  after the last  next ~ p

Siblings are tested in order, each against the residual that the earlier ones left of p; their q is conditional on the
earlier siblings. A point mass counts as q = 1 at its token.

Deviates from the papers: trees and point masses are verified by the same rule.
Exact: distribution.
"""

from __future__ import annotations

from ...registry import register
from ...traits import Trait
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.verification import judge


@register(
    "speculative",
    exact="distribution",
    checked="golden/acceptance reference:reference.naive_acceptance.recursive joint",
)
class Speculative(Acceptance):
    provides = frozenset({Trait.NEEDS_NO_HOST})

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return judge(draft, distributions.probs, uniforms)
