"""Attention of queries at arbitrary positions over slots of a cache.

    attend(q, k, v, pattern)[b, i] = sum_s softmax_s(q[b, i] . k[r, s] / sqrt(D)) v[r, s]

over the slots s that query i of row b sees, r being the cache row of b. `attention_pattern` works out once a forward
what a plan's queries see and which version runs; `attend` then runs per layer. The definition is
`scaled_dot_product_attention`: without a mask where everything read is seen, with its causal flag where the pattern is
that, and with an explicit mask elsewhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from .attention_pattern import AttentionPattern
from .cpu.attention import attend_c, causal_c, faster


def attend(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None = None) -> Tensor:
    """Attention of q [B, Q, H, D] over k, v [R, >= S, K, D] (cache rows and slots) -> [B, Q, H, D]; K divides H.

    With `cap`, a score s counts as cap * tanh(s / cap); the pattern's version is then the definition.
    """
    if pattern.backend == "triton":
        from .attention_triton import attend_triton

        return attend_triton(q, k, v, pattern)
    if cap is None and pattern.in_c and faster(q):
        return attend_c(q, read_rows(k, pattern), read_rows(v, pattern), pattern.last, pattern.ends)
    if cap is None and pattern.causal and pattern.backend == "c":
        return causal_c(q, read_rows(k, pattern), read_rows(v, pattern))
    k, v = visible_rows(k, pattern), visible_rows(v, pattern)
    if cap is not None:
        return _capped(q, k, v, pattern, cap)
    q = q.transpose(1, 2)
    batch, heads, queries, dim = q.shape
    # Where all queries see the same, heads that share keys stand one behind the other: these are read once for all.
    shared = pattern.mask is None and not pattern.causal
    out = F.scaled_dot_product_attention(
        q.reshape(batch, k.shape[2], -1, dim) if shared else q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=pattern.mask,
        is_causal=pattern.causal,
        enable_gqa=not shared and heads != k.shape[2],
    )
    return out.reshape(batch, heads, queries, dim).transpose(1, 2)  # a GPU may return other strides


def _capped(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float) -> Tensor:
    """The same with capped scores, softmax in float32."""
    q = rearrange(q, "b q (k g) d -> b k g q d", k=k.shape[2])
    scores = torch.einsum("bkgqd,bskd->bkgqs", q, k) / q.shape[-1] ** 0.5
    scores = (scores / cap).tanh() * cap
    mask = additive_mask(pattern, q.shape[3], k.shape[1], q.dtype, q.device)
    if mask is not None:
        scores = scores + mask[:, None]
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return rearrange(torch.einsum("bkgqs,bskd->bkgqd", weights, v), "b k g q d -> b q (k g) d")


def additive_mask(
    pattern: AttentionPattern, queries: int, slots: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """[B or 1, 1, Q, S] 0 where a query sees a slot and -inf elsewhere; None where everything read is seen."""
    mask = pattern.mask
    if pattern.causal or hasattr(mask, "seq_len_q"):  # queries stand at the end of what is read, in order
        whole = torch.full((1, 1, queries, slots), -torch.inf, device=device, dtype=dtype)
        return whole.triu(1 + slots - queries)
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=device, dtype=dtype).masked_fill_(~mask, -torch.inf)
    return mask


def read_rows(stored: Tensor, pattern: AttentionPattern) -> Tensor:
    """The slots that are read, as rows of the plan."""
    read = stored if stored.shape[1] == pattern.extent else stored[:, : pattern.extent]
    return read if pattern.rows is None else read.index_select(0, pattern.rows)


def visible_rows(stored: Tensor, pattern: AttentionPattern) -> Tensor:
    """The slots that are read, as rows of the plan; whatever stands past a row's length becomes zero."""
    read = read_rows(stored, pattern)
    if pattern.dead is None:
        return read
    # A masked weight is 0, but 0 * NaN is NaN: the values themselves have to go.
    if pattern.dead.dtype == torch.bool:
        return read.masked_fill(pattern.dead, 0)
    read = read.clone(memory_format=torch.contiguous_format) if pattern.rows is None else read
    read.flatten(0, 1).index_fill_(0, pattern.dead, 0)
    return read
