"""Attention over slots in two parts, the first of which all rows may share.

Hydragen: High-Throughput LLM Inference with Shared Prefixes, https://arxiv.org/abs/2402.05099
LongSpec: Long-Context Lossless Speculative Decoding with Efficient Drafting and Verification,
https://arxiv.org/abs/2502.17421

    o = sum_p w_p o_p,  w = softmax(z);  of two parts  w_1 = sigmoid(z_1 - z_2)
    o_p the attention over part p alone,  z_p = log sum_s exp(score_s) over its slots

The queries of all rows meet a part that they share as those of one row, in a product [B Q, D] x [D, S] for each head,
which reads it once. Each part takes the kernel in C where its pattern and its queries are ones for that, else the
definition, which computes in float32 or wider.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from ..plan import Plan
from .attention import AttentionPattern, additive_mask, attention_pattern, read_rows, visible_rows
from .choice import backend
from .cpu.attention import attend_c, kernel

Part = tuple[Tensor, Tensor, AttentionPattern]  # K and V [R or 1, >= S, K, D]; a single row serves all


def pattern_parts(
    plan: Plan, count: int, *, extent: int, dtype: torch.dtype, device: torch.device, reference: bool = False
) -> tuple[AttentionPattern, AttentionPattern]:
    """The patterns of the queries over the first `count` slots, which are shared, and over slots `count` to `extent`.

    With `reference`, both are for the definition.
    """
    in_c = not reference and backend(device, dtype) == "c"
    own = attention_pattern(plan.after(count), extent=extent - count, dtype=dtype, device=device, reference=not in_c)
    first = plan.before(count)
    if first is None:
        return AttentionPattern("c" if in_c else "reference", count), own
    mask = torch.zeros(first.shape, dtype=dtype, device=device).masked_fill_(~first, -torch.inf)
    return AttentionPattern("reference", count, mask=mask[:, None]), own


def attend_parts(q: Tensor, first: Part, second: Part, cap: float | None = None) -> Tensor:
    """Attention of q [B, Q, H, D] over the slots of both parts together -> [B, Q, H, D]; K divides H.

    With `cap`, a score s counts as cap * tanh(s / cap). A query sees some slot of one part or the other.
    """
    (one, one_sum), (two, two_sum) = (attend_part(q, *part, cap) for part in (first, second))
    share = (one_sum - two_sum).sigmoid_()[..., None]
    return torch.lerp(two.to(share.dtype), one.to(share.dtype), share).to(q.dtype)


def attend_part(
    q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """The attention over one part [B, Q, H, D], and its log-sum-exps [B, Q, H], -inf for a query that sees no slot."""
    batch, queries, heads, dim = q.shape
    rows = k.shape[0] if pattern.rows is None else batch
    by_row = q.reshape(rows, -1, heads, dim)
    if cap is None and pattern.in_c and kernel() is not None:
        sums = torch.empty(by_row.shape[:3])
        k, v = read_rows(k, pattern), read_rows(v, pattern)
        out = attend_c(by_row, k, v, pattern.last, pattern.ends, sums)
        return out.view(q.shape), sums.view(q.shape[:3])
    k, v = visible_rows(k, pattern), visible_rows(v, pattern)
    kv, wide = k.shape[2], torch.promote_types(q.dtype, torch.float32)
    # Heads before rows: the keys need no copy where each head's keys are contiguous.
    scaled = rearrange(q.to(wide) * dim**-0.5, "(r b) q (k g) d -> (k r) (b q g) d", r=rows, k=kv)
    keys, values = (rearrange(each, "r s k d -> (k r) s d").to(wide) for each in (k, v))
    scores = scaled @ keys.transpose(1, 2)
    if cap is not None:
        scores = (scores / cap).tanh_() * cap
    mask = additive_mask(pattern, queries, keys.shape[1], q.dtype, q.device)
    if mask is not None:
        by_query = rearrange(scores, "(k r) (b q g) s -> k (r b) q g s", r=rows, q=queries, g=heads // kv)
        by_query += mask[:, 0, :, None]
    # The highest score is finite also for a query that sees no slot.
    highest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(wide).min)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(-1, keepdim=True)
    out = weights @ values / total.clamp(min=torch.finfo(wide).tiny)
    log_sum = (highest + total.log())[..., 0]
    layout = {"r": rows, "q": queries, "g": heads // kv}
    return (
        rearrange(out, "(k r) (b q g) d -> (r b) q (k g) d", **layout),
        rearrange(log_sum, "(k r) (b q g) -> (r b) q (k g)", **layout),
    )
