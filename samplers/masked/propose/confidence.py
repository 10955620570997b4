"""Scores a candidate by its probability.

Large Language Diffusion Models ("low confidence remasking"), https://arxiv.org/abs/2502.09992

    score = p(candidate)

With `of=raw` (LLaDA) the probability is the model's own, also where the candidate was drawn at a temperature or from a
filtered distribution; with `of=filtered` (Dream) it is that of the distribution the candidate was drawn from.
Exact: greedy with `of=raw`, which is the order that `sequential` is defined in.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Evidence, Proposal, Propose


@register(
    "confidence",
    exact="greedy",
    checked="golden/dimple golden/dream golden/fast_dllm_v2 golden/llada golden/llada2 golden/sdar_moe "
    "golden/wedlm reference:reference.naive_masked.decode",
)
class Confidence(Propose):
    provides = frozenset({Trait.NEEDS_NO_HOST})

    of: Annotated[Literal["raw", "filtered"], "score before (raw) or after temperature and filters"] = "raw"

    @property
    def exact(self) -> str:
        return "greedy" if self.of == "raw" else "relaxed"

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        tokens = evidence.draw(canvas)
        return evidence.propose(tokens, evidence.measured(self.of).probability(tokens))
