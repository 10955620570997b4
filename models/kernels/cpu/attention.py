"""Attention by a kernel in C: of few queries that see all slots, on a CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from . import library
from .library import COUNT, POINTER

_MOST = 256  # queries of a row, above which PyTorch's attention is as fast
_WIDE = 64  # dimensions, above which it is faster with a single query
_FILE = Path(__file__).with_name("attention.c")
_ARGUMENTS = (*[POINTER] * 5, *[COUNT] * 7)
_Steps = ctypes.c_ssize_t * 12


def faster(q: Tensor) -> bool:
    """Whether these queries [B, Q, H, D] are so few that PyTorch's attention takes longer."""
    _, queries, _, dim = q.shape
    return 1 < queries <= _MOST or (queries == 1 and dim <= _WIDE)


def attend_c(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of q [B, Q, H, D] over all slots of k, v [B, S, K, D]: as q. The last dimensions lie together."""
    batch, queries, heads, dim = q.shape
    slots, shared = k.shape[1], k.shape[2]
    out = torch.empty(q.shape)
    steps = _Steps(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3])
    threads = library.threads(2 * q.numel() * slots)
    operands = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), steps
    run = library.kernel(_FILE, "pardec_attend", _ARGUMENTS)
    if run(*operands, batch, queries, heads, shared, slots, dim, threads):
        raise MemoryError(f"no memory for the attention of {queries} queries of {dim} dimensions")
    return out
