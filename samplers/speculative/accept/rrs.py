"""Tests siblings one after the other, each against the residual of the target's distribution.

SpecInfer, https://arxiv.org/abs/2305.09781 (siblings sampled independently)
Recursive Speculative Decoding, https://arxiv.org/abs/2402.14160 (siblings sampled without replacement)

    r_1 = p;  x_j ~ q_j accepted  iff  u q_j(x_j) < r_j(x_j);  rejected: r_(j+1) = norm([r_j - q_j]+)
    replacement=false: q_j is q without x_1 .. x_(j-1), normalised        replacement=true: q_j = q

The test is that of `speculative`; this rule also determines how siblings are sampled. Without replacement more tokens
are accepted, since a rejected token is not tried again.

Deviates from the papers: point masses among the siblings count as q = 1 at their token.
Exact: distribution.
"""

from __future__ import annotations

from typing import Annotated

from ...registry import register
from ..contracts import Acceptance, Draft, Siblings, TargetDistributions, Uniforms, Verdict
from ..ops.verification import judge


@register(
    "rrs",
    paper="arXiv:2402.14160",
    exact="distribution",
    checked="reference:reference.naive_acceptance.recursive joint",
)
class RecursiveRejection(Acceptance):
    replacement: Annotated[bool, "siblings are sampled independently, as in SpecInfer"] = False

    @property
    def siblings(self) -> Siblings:
        return "with" if self.replacement else "without"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return judge(draft, distributions.probs, uniforms)
