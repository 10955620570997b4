"""Tests drafted tokens against the target's distribution after a step towards the drafter's.

Long-Context Inference with Retrieval-Augmented Speculative Decoding, https://arxiv.org/abs/2502.20330

    p^ = softmax(z + eta [q >= alpha max q] (q - p)),  p = softmax(z)
    x ~ q accepted  iff  u q(x) < p^(x);  at the first rejection  next ~ norm([max(p - q, p - p^)]+),
    after the last  next ~ p

The step is one of gradient descent on the distillation loss of p from q, over the drafter's likely tokens alone: what a
drafter knows that reads retrieved chunks, or another that is better than the target in some respect, is transferred
without training. At temperature 0 a token is accepted if it is the argmax of z + eta (..), q being its point mass.

The reported deviation is the sum of |a(x) - min(1, p(x)/q(x))| over the tested tokens, a being this rule's acceptance
probability; it sets no limit, and does not count what the residual gives away.

Deviates from the authors' code: point masses; siblings, which it does not have, are tested in order against the
residual that the earlier ones left; the argmax at temperature 0, where the code needs one above 0.
Exact: no, except with eta=0.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...ops.confidence import argmax
from ...registry import register
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.relaxed import relaxed
from ..ops.verification import Exact, Trial, judge


@register("enrich", checked="reference:samplers.speculative.test_enrich.naive")
class Enrich(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"eta": (1.0, 5.0, 10.0, 20.0, 40.0)}

    eta: Annotated[float, "strength of the step towards the drafter; 0 is exact, the paper has 5 to 40"] = 10.0
    alpha: Annotated[float, "tokens below this share of the drafter's highest probability stay unchanged"] = 0.1

    def __post_init__(self) -> None:
        self.require("eta", least=0)
        self.require("alpha", least=0, most=1)

    @property
    def exact(self) -> str:
        return "relaxed" if self.eta else "distribution"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        if not self.eta:
            return judge(draft, distributions.probs, uniforms)
        greedy = distributions.logits if distributions.greedy else None
        return relaxed(draft, distributions.probs, uniforms, _Enrichment(self, greedy))


class _Enrichment(Exact):
    """The rule for one round; `logits` [B, T, V] of the target at temperature 0."""

    def __init__(self, method: Enrich, logits: Tensor | None) -> None:
        self.method, self.logits = method, logits

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        """[N]: p^(x), computed from the residual r instead of p."""
        return self._shifted(r, trial).gather(1, trial.token[:, None])[:, 0]

    def after_rejection(self, r: Tensor, trial: Trial) -> Tensor:
        """[N, V]: norm([max(r - q, r - p^)]+); at temperature 0 the point mass r (not at the rejected token)."""
        if self.logits is not None:
            return r
        left = torch.maximum(r - self._drafted(r, trial), r - self._shifted(r, trial)).clamp(min=0)
        rest = left.sum(-1, keepdim=True)
        return torch.where(rest > 0, left / rest.clamp(min=torch.finfo(rest.dtype).tiny), r)

    def _shifted(self, r: Tensor, trial: Trial) -> Tensor:
        """[N, V]: p^, at temperature 0 the point mass at its argmax."""
        z = r.log() if self.logits is None else self.logits[trial.row, trial.parent]
        q = self._drafted(r, trial)
        likely = q >= self.method.alpha * q.amax(-1, keepdim=True)
        step = torch.where(likely, q - z.softmax(-1), 0)
        if self.logits is None:
            return (z + self.method.eta * step).softmax(-1)
        pick = argmax(z + self.method.eta * step)
        return torch.zeros_like(z).scatter_(1, pick[:, None], 1)

    def _drafted(self, r: Tensor, trial: Trial) -> Tensor:
        """[N, V]: the drafter's distribution."""
        token = torch.zeros_like(r).scatter_(1, trial.token[:, None], 1)
        if trial.q is None:
            return token
        return trial.q if trial.is_point_mass is None else torch.where(trial.is_point_mass[:, None], token, trial.q)
