"""Attention over slots that lie in several parts, some of which all rows have in common.

Hydragen: High-Throughput LLM Inference with Shared Prefixes, https://arxiv.org/abs/2402.05099

    o = sum_p softmax_p(z_p) o_p,   o_p the attention over part p alone, z_p = log sum_s exp(score_s) over its slots

The queries of all rows meet a part that they share in one product [B Q, D] x [D, S] for each head, which reads it once.
Computed in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import Tensor

from ..plan import Plan
from .attention import additive_mask, visible_rows
from .attention_pattern import AttentionPattern, attention_pattern

Part = tuple[Tensor, Tensor, AttentionPattern]  # K and V [B or 1, >= S, K, D], one row being that of all


def pattern_parts(
    plan: Plan, count: int, *, extent: int, dtype: torch.dtype, device: torch.device
) -> tuple[AttentionPattern, AttentionPattern]:
    """What the queries see of the first `count` slots, which are shared, and of those from there on up to `extent`."""
    first = plan.before(count)
    mask = None if first is None else torch.zeros(first.shape, dtype=dtype, device=device)
    if mask is not None and first is not None:
        mask = mask.masked_fill_(~first, -torch.inf)[:, None]
    own = attention_pattern(plan.behind(count), extent=extent - count, dtype=dtype, device=device, reference=True)
    return AttentionPattern("reference", count, mask=mask), own


def attend_parts(q: Tensor, parts: Sequence[Part], cap: float | None = None) -> Tensor:
    """Attention of q [B, Q, H, D] over all slots of `parts` together -> [B, Q, H, D]; K divides H.

    With `cap`, a score s counts as cap * tanh(s / cap). A query sees a slot of some part.
    """
    outputs, sums = zip(*(_attend_part(q, *part, cap) for part in parts), strict=True)
    shares = torch.stack(sums).softmax(0)
    merged = sum(share[..., None] * output for share, output in zip(shares, outputs, strict=True))
    assert isinstance(merged, Tensor), "there is a part"
    return merged.to(q.dtype)


def _attend_part(
    q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
) -> tuple[Tensor, Tensor]:
    """The attention over one part alone [B, Q, H, D], and the log of its sum [B, Q, H], -inf where nothing is seen."""
    queries, heads, dim = q.shape[1:]
    k, v = visible_rows(k, pattern), visible_rows(v, pattern)
    wide = torch.promote_types(q.dtype, torch.float32)
    rows, kv = k.shape[0], k.shape[2]
    # Heads before rows: so that the keys need no copy where those of a head lie together.
    scaled = rearrange(q.to(wide) * dim**-0.5, "(r b) q (k g) d -> (k r) (b q g) d", r=rows, k=kv)
    keys, values = (rearrange(each, "r s k d -> (k r) s d").to(wide) for each in (k, v))
    scores = scaled @ keys.transpose(1, 2)
    if cap is not None:
        scores = (scores / cap).tanh_() * cap
    mask = additive_mask(pattern, queries, keys.shape[1], q.dtype, q.device)
    if mask is not None:
        by_query = rearrange(scores, "(k r) (b q g) s -> k (r b) q g s", r=rows, q=queries, g=heads // kv)
        by_query += mask[:, 0, :, None]
    highest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(wide).min)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(-1, keepdim=True)
    output = weights @ values / total.clamp(min=torch.finfo(wide).tiny)
    log_sum = (highest + total.log())[..., 0]
    layout = {"r": rows, "q": queries, "g": heads // kv}
    return (
        rearrange(output, "(k r) (b q g) d -> (r b) q (k g) d", **layout),
        rearrange(log_sum, "(k r) (b q g) -> (r b) q (k g)", **layout),
    )
