"""Tests k independent drafts of one token against the target's distribution, all at the same division factor rho.

SpecTr: Fast Speculative Decoding via Optimal Transport, https://arxiv.org/abs/2310.15141

    x_1 .. x_k ~ q;  the first accepted  iff  u rho q(x) < p(x);  b = sum min(p / rho, q);  1 - (1 - b)^k = rho b
    none accepted:  next ~ norm(p - s min(p / rho, q)),  s = (1 - (1 - b)^k) / b

rho, between 1 and k, is found by bisection from above, where the rule is exact too. On chains (k = 1, rho = 1) and for
the point masses of greedy drafting the rule is `speculative`.

Deviates from the paper: trees are verified level by level, k being each node's number of children. Shapes whose number
of children depends on the sampled tokens would bias the distribution and are refused.
Exact: distribution.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ...registry import register
from ...rng import wide
from ...traits import Reasons, Trait, Why
from ..contracts import (
    Acceptance,
    BatchedUniforms,
    Draft,
    Siblings,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from ..ops.tree_walk import Walk
from ..ops.verification import judge, total

_HALVINGS = 36  # halvings of an interval of length k: finer than float32 probabilities


@register("kseq", exact="distribution", checked="reference:reference.naive_acceptance.rho joint")
class KSeq(Acceptance):
    requires: ClassVar[Reasons] = {
        Trait.TAKES_SHAPE: Why(
            "{me} needs tokens sampled independently from a distribution, and {other!r} does not sample its drafts",
            "accept with speculative, or draft with model:name=...",
        )
    }
    conflicts: ClassVar[Reasons] = {
        Trait.ADAPTIVE_TREES: Why(
            "{me} depends on the number of siblings, which must not depend on the sampled tokens, and {does}",
            "use the shape template, or accept with rrs",
        )
    }

    @property
    def siblings(self) -> Siblings:
        return "with"

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        if draft.q is None or draft.is_point_mass is not None:
            return judge(draft, distributions.probs, uniforms)
        rows = torch.arange(len(distributions.probs), device=distributions.probs.device)
        p = wide(distributions.probs)
        target = p[rows[:, None], draft.parent.clamp(min=0), draft.ids]  # [B, T]
        draft_prob = wide(draft.q.gather(-1, draft.ids[..., None])[..., 0])
        known = uniforms.accepts(draft.width) if isinstance(uniforms, BatchedUniforms) else None
        walk, tested, ratio = Walk(draft), torch.zeros_like(draft.tested), torch.zeros_like(target)
        r = p[:, 0]
        for _ in range(draft.deepest):
            child = walk.children
            k = child.sum(1)
            q = wide(draft.q[rows, child.long().argmax(1)])
            rho = division(r, q, k) if draft.parents is not None else torch.ones_like(r[:, :1])
            scaled_prob = rho * draft_prob
            u = _level_uniforms(draft, uniforms, child, scaled_prob, target) if known is None else known
            first = walk.step(child & (u * scaled_prob < target))
            child &= walk.index <= first[:, None]
            tested |= child
            ratio = torch.where(child, (target / scaled_prob.clamp(min=1e-12)).clamp(max=1), ratio)
            r = torch.where(walk.alive[:, None], p[rows, walk.node], residual_after(r, q, k, rho))
        return Verdict(walk.path, walk.count, uniforms.draw(r, "next"), tested, ratio.to(distributions.probs.dtype))


def division(p: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """rho [B, 1] for `k` [B] drafts from q [B, V] and the target p [B, V], both float64; 1 where k is 0 or 1."""
    drafts = k.clamp(min=1)[:, None].to(p.dtype)
    low, high = torch.ones_like(drafts), drafts
    if k.device.type == "cpu" and int(k.max()) < 2:  # on a GPU this check would synchronize; rho is then 1 as well
        return low
    for _ in range(_HALVINGS):
        rho = (low + high) / 2
        beta = total(torch.minimum(p / rho, q))
        short = 1 - (1 - beta) ** drafts > rho * beta
        low, high = torch.where(short, rho, low), torch.where(short, high, rho)
    return high


def residual_after(p: Tensor, q: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """[B, V], not normalised: the next token's distribution if none of `k` [B] drafts is accepted; p where k is 0."""
    shared = torch.minimum(p / rho, q)
    beta = total(shared).clamp(0, 1)
    accepted = 1 - (1 - beta) ** k[:, None]
    rest = (p - shared * (accepted / beta.clamp(min=1e-300))).clamp(min=0)
    return torch.where(rest.amax(-1, keepdim=True) > 1e-12, rest, p)


def _level_uniforms(draft: Draft, uniforms: Uniforms, child: Tensor, level: Tensor, weight: Tensor) -> Tensor:
    """[B, T] uniforms of one level, requested in order and only for the tests that take place."""
    u, going = torch.ones_like(weight), torch.ones_like(child[:, 0])
    for node in range(1, draft.width):
        active = child[:, node] & going
        if active.any():
            u[:, node] = uniforms.accept(node, active, draft.tokens[:, node])
            going = going & ~(active & (u[:, node] * level[:, node] < weight[:, node]))
    return u
