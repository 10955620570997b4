"""Attention of queries at arbitrary positions over slots of a cache.

    attend(q, k, v, sight)[b, i] = sum_s softmax_s(q[b, i] . k[r, s] / sqrt(D)) v[r, s]

over the slots s that query i of row b sees, r being the cache row of b. `look` resolves a plan into a `Sight` once a
forward; `attend` then runs per layer. The definition is `scaled_dot_product_attention`: without a mask where everything
read is seen, with its causal flag where the pattern is that, and with an explicit mask elsewhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention_pattern import AttentionPattern
from .cpu.attention import attend_c, faster


def attend(q: Tensor, k: Tensor, v: Tensor, attention_pattern: AttentionPattern) -> Tensor:
    """Attention of q [B, Q, H, D] over k, v [R, >= S, K, D] (cache rows and slots) -> [B, Q, H, D]; K divides H."""
    if attention_pattern.backend == "triton":
        from .attention_triton import attend_triton

        return attend_triton(q, k, v, attention_pattern)
    k, v = _rows(k, attention_pattern), _rows(v, attention_pattern)
    if attention_pattern.backend == "c" and faster(q):
        return attend_c(q, k, v)
    q = q.transpose(1, 2)
    batch, heads, queries, dim = q.shape
    # Where all queries see the same, heads that share keys stand one behind the other: these are read once for all.
    shared = attention_pattern.mask is None and not attention_pattern.causal
    out = F.scaled_dot_product_attention(
        q.reshape(batch, k.shape[2], -1, dim) if shared else q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=attention_pattern.mask,
        is_causal=attention_pattern.causal,
        enable_gqa=not shared and heads != k.shape[2],
    )
    return out.view(batch, heads, queries, dim).transpose(1, 2)


def _rows(stored: Tensor, attention_pattern: AttentionPattern) -> Tensor:
    """The slots that are read, as rows of the plan; whatever stands past a row's length becomes zero."""
    read = stored if stored.shape[1] == attention_pattern.extent else stored[:, : attention_pattern.extent]
    if attention_pattern.rows is not None:
        read = read.index_select(0, attention_pattern.rows)
    if attention_pattern.dead is None:
        return read
    # A masked weight is 0, but 0 * NaN is NaN: the values themselves have to go.
    if attention_pattern.dead.dtype == torch.bool:
        return read.masked_fill(attention_pattern.dead, 0)
    read = read.clone(memory_format=torch.contiguous_format) if attention_pattern.rows is None else read
    read.flatten(0, 1).index_fill_(0, attention_pattern.dead, 0)
    return read
