"""Accepts a drafted token if it is the target's most likely token.

Blockwise Parallel Decoding for Deep Autoregressive Models, https://arxiv.org/abs/1811.03115

    x accepted  iff  x = argmax p(. | its prefix);  next = argmax p

Exact: greedy. The temperature must be 0, since this rule ignores every other probability.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...registry import register
from ...traits import Trait
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.verification import follow


@register(
    "greedy",
    stage="accept",
    paper="arXiv:1811.03115",
    exact="greedy",
    checked="golden/acceptance golden/heads golden/llamagen reference:samplers.ar_toys.plain_greedy",
)
@dataclass(frozen=True)
class Greedy(Acceptance):
    provides = frozenset({Trait.FOLLOWS_PICK, Trait.LIKELIEST_ONLY})

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return follow(draft, distributions.pick)
