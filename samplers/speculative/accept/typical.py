"""Accepts tokens above a probability threshold that falls with the entropy of the target's distribution.

Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, https://arxiv.org/abs/2401.10774

    x accepted  iff  p(x) > min(epsilon, delta exp(-H(p)));  next ~ p

Of several accepted paths the longest is taken, and of equally long ones that of the highest sum of log p.

The reported deviation is the sum of 1 - p(x) over the accepted tokens: given the draft, an accepted token is certain
instead of having probability p(x). Averaged over drafts, it bounds the total variation from the target's distribution.

Deviates from the authors' code: the next token is sampled, and log p is exact; `reference=true` takes the argmax as
they do, adds 1e-5 inside the logarithm, and counts the next token in the deviation too.
Exact: no. At temperature 0 it is `greedy`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...ops.confidence import argmax
from ...registry import register
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.tree_walk import longest, reached


@register("typical", checked="golden/acceptance golden/heads reference:reference.naive_acceptance.typical")
class Typical(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"epsilon": (0.3, 0.2, 0.09, 0.03, 0.01)}

    epsilon: Annotated[float, "a probability above this is always enough"] = 0.09
    delta: Annotated[
        float, "a probability above this share of exp(-entropy) is enough; the authors take sqrt(epsilon)"
    ] = 0.3
    reference: Annotated[bool, "as the authors' code: the next token is the likeliest"] = False

    def __post_init__(self) -> None:
        self.require("epsilon", "delta", least=0)

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        p = distributions.probs
        rows, above = torch.arange(len(p), device=p.device), draft.parent.clamp(min=0)
        target = p[rows[:, None], above, draft.ids]  # [B, T]
        fits = draft.tested & (target > self.threshold(p).gather(1, above))
        path, count = longest(draft, fits, target.log())
        end = path.gather(1, count[:, None])[:, 0]
        on_path = torch.arange(path.shape[1], device=p.device) <= count[:, None]
        missing = (1 - target.gather(1, path)).masked_fill(~on_path, 0)
        missing[:, 0] = 0  # node 0 was committed before
        deviation = missing.cumsum(1)[:, -1]
        last = p[rows, end]
        if self.reference or distributions.greedy:
            following = argmax(last)
            deviation = deviation + 1 - last.gather(1, following[:, None])[:, 0]
        else:
            following = uniforms.draw(last, "next")
        return Verdict(path, count, following, reached(draft, path, count), fits.float(), deviation)

    def threshold(self, p: Tensor) -> Tensor:
        """[B, T]: the probability that a token after each node must exceed."""
        inside = 1e-5 if self.reference else 0.0
        entropy = -torch.special.xlogy(p, p + inside).sum(-1)
        threshold: Tensor = self.delta * (-entropy).exp()
        return threshold.clamp(max=self.epsilon)
