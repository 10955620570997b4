"""Attention by a kernel in C on a CPU, for queries that see all slots or all but some of the last."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import library
from .library import COUNT, POINTER, TYPES

_FILE = Path(__file__).with_name("attention.c")
_ARGUMENTS = (COUNT, *[POINTER] * 8, *[COUNT] * 9)
_Steps = ctypes.c_ssize_t * 14


def attend_c(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    sums: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Attention of q [B, Q, H, D] over the slots of k, v [B, S, K, D]: as q. The last dimensions are contiguous.

    q, k and v are float32 or bfloat16, all the same, and the mask is float32.
    A row reads its first `lengths` [B] int64 slots, at least one, or all. All of them are seen, or all but those for
    which `mask` [B, Q, M], of the last M slots of each row, has -inf and not 0; each query sees one of its own. Of a
    row with fewer slots the end of the mask counts.
    With `causal` each query sees the slots up to its own, S = Q, and nothing of this is given.
    The log-sum-exps of the scores are written to `sums` [B, Q, H] float32, contiguous.
    """
    batch, queries, heads, dim = q.shape
    slots, shared = k.shape[1], k.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype)
    apart = (0, 0) if mask is None else mask.stride()[:2]
    steps = _Steps(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *apart)
    last, start = (0, None) if mask is None else (mask.shape[-1], mask.data_ptr())
    ends = None if lengths is None else lengths.data_ptr()
    threads = library.threads(2 * q.numel() * slots)
    operands = TYPES[q.dtype], q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), start
    wanted = None if sums is None else sums.data_ptr()
    if kernel()(*operands, wanted, steps, ends, batch, queries, heads, shared, slots, last, dim, causal, threads):
        raise MemoryError(f"no memory for the attention of {queries} queries of {dim} dimensions")
    return out


def kernel() -> Any:
    """The compiled attention; None where there is none."""
    return library.kernel(_FILE, "pardec_attend", _ARGUMENTS)
