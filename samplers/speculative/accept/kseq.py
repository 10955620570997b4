"""Tests k independent drafts of one token against the target's law, all by the same lowered bar.

SpecTr: Fast Speculative Decoding via Optimal Transport, https://arxiv.org/abs/2310.15141

    x_1 .. x_k ~ q;  the first accepted  iff  u rho q(x) < p(x);  b = sum min(p / rho, q);  1 - (1 - b)^k = rho b
    none accepted:  next ~ norm(p - s min(p / rho, q)),  s = (1 - (1 - b)^k) / b

rho, between 1 and k, is found by bisection from above, where the rule is exact too. A chain has k = 1 and rho = 1:
there, and for the point masses of greedy drafting, it is `speculative`.

Deviates from the paper: trees, level by level, each node with the number of its own children as k. Shapes that let the
tokens drawn decide how many there are would bias the law: they are refused.
Exact: distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...ops.tree_walk import Walk
from ...ops.verification import asked, judge, total
from ...registry import register
from ...rng import wide
from ..contracts import Acceptance, AtOnce, Draft, Siblings, SpeculativeSampler, TargetDistributions, Uniforms, Verdict

_HALVINGS = 36  # of an interval as long as k: nothing of the acceptance is lost that float32 laws could show


@register("kseq", stage="accept", paper="arXiv:2310.15141", exact="distribution", checked="reference joint")
@dataclass(frozen=True)
class KSeq(Acceptance):
    @property
    def siblings(self) -> Siblings:
        return "with"

    def check(self, sampler: SpeculativeSampler) -> None:
        if not sampler.draft.takes_shape:
            name = sampler.spec.parts[0].name
            raise SpecError(
                f"kseq accepts tokens drawn independently from a law, and {name!r} has no law to draw them from",
                hint="accept with speculative, or draft with model:name=...",
            )
        if sampler.shape is not None and sampler.shape.adaptive:
            raise SpecError(
                "kseq lowers its bar by the number of siblings, which must not depend on the tokens drawn",
                hint="draft in the shape template, or accept with rrs",
            )

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        if draft.q is None or draft.point is not None:
            return judge(draft, distributions.probs, uniforms)
        rows = torch.arange(len(distributions.probs), device=distributions.probs.device)
        p = wide(distributions.probs)
        mine = p[rows[:, None], draft.parent.clamp(min=0), draft.ids]  # [B, T]
        theirs = wide(draft.q.gather(-1, draft.ids[..., None])[..., 0])
        known = uniforms.accepts(draft.width) if isinstance(uniforms, AtOnce) else None
        walk, tested, ratio = Walk(draft), torch.zeros_like(draft.tested), torch.zeros_like(mine)
        r = p[:, 0]
        for _ in range(draft.deepest):
            child = walk.children
            k = child.sum(1)
            q = wide(draft.q[rows, child.long().argmax(1)])
            rho = division(r, q, k)
            bar = rho * theirs
            u = asked(draft, uniforms, child, bar, mine) if known is None else known
            first = walk.step(child & (u * bar < mine))
            child &= walk.index <= first[:, None]
            tested |= child
            ratio = torch.where(child, (mine / bar.clamp(min=1e-12)).clamp(max=1), ratio)
            r = torch.where(walk.alive[:, None], p[rows, walk.here], left(r, q, k, rho))
        return Verdict(walk.path, walk.count, uniforms.draw(r, "next"), tested, ratio.to(distributions.probs.dtype))


def division(p: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """rho [B, 1] for `k` [B] drafts from q [B, V] of a token of law p [B, V], both float64; 1 where k is 0 or 1."""
    drafts = k.clamp(min=1)[:, None].to(p.dtype)
    low, high = torch.ones_like(drafts), drafts
    if int(k.max()) < 2:
        return low
    for _ in range(_HALVINGS):
        rho = (low + high) / 2
        beta = total(torch.minimum(p / rho, q))
        short = 1 - (1 - beta) ** drafts > rho * beta
        low, high = torch.where(short, rho, low), torch.where(short, high, rho)
    return high


def left(p: Tensor, q: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """The law [B, V] of the next token, not normalised, where none of `k` [B] drafts was accepted; p where k is 0."""
    shared = torch.minimum(p / rho, q)
    beta = total(shared).clamp(0, 1)
    accepted = 1 - (1 - beta) ** k[:, None]
    rest = (p - shared * (accepted / beta.clamp(min=1e-300))).clamp(min=0)
    return torch.where(rest.amax(-1, keepdim=True) > 1e-12, rest, p)
