"""Moves the target's distribution towards the draft's before it tests a token, so that more tokens are accepted.

Fast Inference from Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192 (lenience)
DistillSpec: Improving Speculative Decoding via Knowledge Distillation, https://arxiv.org/abs/2310.08461 (f)

    principled:  p~ = (1 - mix) p + mix q;  then `speculative` with p~ in place of p
                 with tv:  mix = min(1, tv / TV(p, q))
    reference:   x ~ q accepted  iff  u q(x) < f(p(x));  f(p) = p / eps, p / eps^2 or p^eps;  rejected: as `speculative`

The output of principled mode, the default, has the distribution p~, within mix * TV(p, q) <= mix of p in total
variation, and a token is accepted with probability a + mix (1 - a), a being that of the exact rule: no other
distribution as near to p accepts more. With `tv` in place of `mix`, p~ is within tv of p however far q is, and the
acceptance is min(1, a + tv). The moved probability is reported, summed over the tested nodes. The published rule keeps
p for the next token: no bound on its distribution is known and none is reported.

A point mass is mixed like any q. Siblings are tested against one p~, mixed with the q of the first of them. At
temperature 0, where p is a point mass, the rule is `greedy`.

Deviates from the papers: principled mode is not theirs; trees and point masses are verified by the same rule.
Exact: no, except with mix=0 or tv=0, in reference mode eps=1, or at temperature 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...registry import register
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from ..ops.relaxed import relaxed
from ..ops.verification import Exact, Trial, judge
from .greedy import follow

_NOTHING = 1e-12  # a distance below this is rounding error
_LEAST = 1e-4  # least eps: its square divides probabilities in float32


@register("lenience", paper="arXiv:2310.08461", checked="reference:samplers.speculative.test_lenience.naive")
class Lenience(Acceptance):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"mix": (0.05, 0.1, 0.2, 0.35, 0.5)}

    mix: Annotated[
        float, "principled: share of the draft's distribution in the mixture, which bounds the deviation"
    ] = 0.1
    eps: Annotated[float, "reference: lenience, from strict 1 down to above 0"] = 0.5
    f: Annotated[Literal["linear", "square", "exponential"], "reference: how eps raises p"] = "linear"
    mode: Annotated[Literal["principled", "reference"], "reference: as published, without a bound"] = "principled"
    tv: Annotated[
        float | None, "principled: most total variation of a token's distribution from the target's; none: mix decides"
    ] = None

    def __post_init__(self) -> None:
        self.require("mix", least=0, most=1, hint="mix=0 is the exact rule")
        self.require("tv", least=0, most=1, hint="tv=0 is the exact rule")
        if self.tv is not None and self.mode == "reference":
            raise SpecError(
                "lenience: tv does not work with mode=reference, whose deviation has no bound", hint="leave mode out"
            )
        if not _LEAST <= self.eps <= 1:
            raise SpecError(
                f"lenience: eps must lie in [{_LEAST:g}, 1], got {self.eps}", hint="mode=reference,eps=1 is exact"
            )

    @property
    def exact(self) -> str:
        budget = self.mix if self.tv is None else self.tv
        strict = budget == 0 if self.mode == "principled" else self.eps == 1
        return "distribution" if strict else "relaxed"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        if distributions.greedy:
            return follow(draft, distributions.pick)
        if self.exact == "distribution":
            return judge(draft, distributions.probs, uniforms)
        if self.mode == "reference":
            return replace(relaxed(draft, distributions.probs, uniforms, _Published(self)), deviation=None)
        mixed, off = mix_drafted(draft, distributions.probs, self.mix, self.tv)
        verdict = judge(draft, mixed, uniforms)
        on_path = torch.arange(verdict.path.shape[1], device=off.device) <= verdict.count[:, None]
        return replace(verdict, deviation=off.gather(1, verdict.path).masked_fill(~on_path, 0).cumsum(1)[:, -1])

    def raised(self, p: Tensor) -> Tensor:
        """f(p) for probabilities [N]."""
        if self.f == "exponential":
            return p**self.eps
        return p / (self.eps if self.f == "linear" else self.eps**2)


def mix_drafted(draft: Draft, p: Tensor, share: float, tv: float | None = None) -> tuple[Tensor, Tensor]:
    """p [B, T, V] with this share of the q of each node's first child, and how far that is from p, [B, T].

    With `tv` the share is what moves p that far, at most 1.
    """
    if draft.width == 1:
        return p, torch.zeros_like(p[..., 0])
    none = draft.width  # more than any node
    order = torch.arange(draft.width, device=p.device).expand_as(draft.tokens)
    child = torch.full_like(draft.tokens, none).scatter_reduce(
        1, draft.parent.clamp(min=0), torch.where(draft.tested, order, none), "amin"
    )
    has, child = child < none, child.clamp(max=none - 1)
    point = torch.zeros_like(p).scatter_(-1, draft.ids.gather(1, child)[..., None], 1.0)
    q = point
    if draft.q is not None:
        q = draft.q.gather(1, child[..., None].expand_as(p))
        if draft.is_point_mass is not None:
            q = torch.where(draft.is_point_mass.gather(1, child)[..., None], point, q)
    q = q.to(p.dtype)
    weight: Tensor | float = share
    if tv is not None:
        weight = (tv / ((q - p).abs().sum(-1, keepdim=True) / 2).clamp(min=_NOTHING)).clamp(max=1)
    mixed = torch.where(has[..., None], torch.lerp(p, q, weight), p)
    return mixed, (mixed - p).abs().sum(-1) / 2


class _Published(Exact):
    """The test against f(p); a rejection leaves the residual of the exact test."""

    def __init__(self, method: Lenience) -> None:
        self.method = method

    def weight(self, r: Tensor, trial: Trial) -> Tensor:
        return self.method.raised(super().weight(r, trial))
