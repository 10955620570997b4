"""Tests the tokens of a chain together, so that a probable chain makes up for an improbable token within it.

Block Verification Accelerates Speculative Decoding, https://arxiv.org/abs/2403.10444

    w_0 = 1,  w_i = min(1, w_(i-1) p_i(x_i) / q_i(x_i));  S_i = sum_x [w_i p_(i+1)(x) - q_(i+1)(x)]+
    h_i = S_i / (S_i + 1 - w_i), and h_K = w_K;  the longest x_1 .. x_t with u_t < h_t is accepted
    next ~ norm([w_t p_(t+1) - q_(t+1)]+),  after the last token  next ~ p

No rule that keeps the target's distribution accepts more tokens on average; of one token it is `speculative`. After the
last token of a chain q counts as 0, which gives h_K and its next token. Point masses alone are verified by
`speculative`, which accepts as many of them. The recorded acceptance probability of a token is h, and all are tested.

The test of a token depends on the tokens after it, so that tokens kept from a rejected draft do not have the
distribution that they were sampled from: drafters that keep them (`sjd`) are refused, and so are trees.

Deviates from the paper: nowhere.
Exact: distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...registry import register
from ...rng import wide
from ..contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict, one_chain
from ..ops.verification import drafted_probs, judge, total, uniforms_of_nodes
from .greedy import follow

_NOTHING = 1e-12  # a mass below this is rounding error


@register("block", exact="distribution", checked="reference:reference.naive_acceptance.block joint")
class BlockVerification(Acceptance):
    requires, conflicts = one_chain("verifies one chain per row", ", or accept with speculative")

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        if distributions.greedy:
            return follow(draft, distributions.pick)
        if draft.q is None:
            return judge(draft, distributions.probs, uniforms)
        p, tested = wide(distributions.probs), draft.tested
        w = _weights(draft, p)
        left = (w[..., None] * p - _following(draft, wide(draft.q))).clamp(min=0)  # [B, T, V]
        mass = total(left.flatten(0, 1)).view_as(w)
        h = mass / (mass + 1 - w).clamp(min=_NOTHING)
        h = torch.where(tested & (mass + 1 - w > _NOTHING), h, tested.to(h.dtype))
        index = torch.arange(draft.width, device=w.device)
        count = torch.where(tested & (uniforms_of_nodes(draft, uniforms) < h), index, 0).amax(1)
        rows = torch.arange(len(p), device=p.device)
        last = left[rows, count]
        last = torch.where(last.amax(-1, keepdim=True) > _NOTHING, last, p[rows, count])
        return Verdict(index.expand_as(tested), count, uniforms.draw(last, "next"), tested, h.to(draft.q.dtype))


def _weights(draft: Draft, p: Tensor) -> Tensor:
    """w [B, T]; 1 at node 0. With l = log(p / q), log w is the sum of l less its greatest prefix sum so far."""
    own = p[:, :-1].gather(-1, draft.ids[:, 1:, None])[..., 0]
    ratio = (own / wide(drafted_probs(draft))[:, 1:].clamp(min=_NOTHING)).masked_fill(~draft.tested[:, 1:], 1)
    sums = pad(ratio.log().cumsum(1), (1, 0))
    return (sums - sums.cummax(1).values).exp()


def _following(draft: Draft, q: Tensor) -> Tensor:
    """[B, T, V]: the distribution that the node after each was sampled from; 0 after a chain's last node."""
    if draft.is_point_mass is not None:
        points = torch.zeros_like(q).scatter_(-1, draft.ids[..., None], 1.0)
        q = torch.where(draft.is_point_mass[..., None], points, q)
    return pad((q * draft.tested[..., None])[:, 1:], (0, 0, 0, 1))
