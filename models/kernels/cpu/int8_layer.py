"""A layer with weights in 8 bits over a few queries of one row, as a direct sequence of kernels in C.

It gives the bits that the layer gives operation by operation. What lies between kernels of 20 to 100 µs there (tensors,
views, the choice of a version) takes as long as they do, and a drafter goes through it several times a round.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from . import attention, layer, library
from .int8 import Int8Weight

MOST = 32  # with more queries, the kernels themselves dominate the time
_Strides = ctypes.c_ssize_t * 6
_Steps = ctypes.c_ssize_t * 14


@dataclass(frozen=True, slots=True, eq=False)
class Int8Layer:
    """Weights and sizes of a layer whose attention and gated MLP both add to its states."""

    qkv: Int8Weight
    out: Int8Weight
    gate_up: Int8Weight
    down: Int8Weight
    norm: Tensor  # [E] the MLP's norm
    epsilon: float
    heads: int
    kv_heads: int
    dim: int

    def forward(
        self,
        h: Tensor,
        inputs: Tensor,
        cos: Tensor,
        sin: Tensor,
        k: Tensor,
        v: Tensor,
        first: int,
        mask: Tensor | None,
    ) -> Tensor:
        """The states [N, E] after the layer of the last N of M queries.

        Args:
            h: [N, E] their states, contiguous, of the type of all that follows.
            inputs: [M, I] what attention reads of all queries, contiguous.
            cos: [M, R] float32, contiguous; `sin` the same, with the sign of the half-split.
            k, v: [1, S, K, D] a cache, in which the M queries take the slots from `first` on.
            mask: [N, L] float32, 0 or -inf: which of the last L slots that are read each query sees; None: all.
        """
        kind, size, count, more = library.TYPES[h.dtype], h.element_size(), len(h), len(inputs)
        width, heads, shared, dim = h.shape[1], self.heads, self.kv_heads, self.dim
        own, fused, inner = heads * dim, (heads + 2 * shared) * dim, self.gate_up.shape[0] // 2
        room = torch.empty(more * (fused + own) + count * (own + 2 * width + 3 * inner), dtype=h.dtype)
        out, start = torch.empty_like(h), room.data_ptr()
        qkv, q = start, start + more * fused * size
        read = q + more * own * size
        attended = read + count * own * size
        normed = attended + count * width * size
        both = normed + count * width * size
        gated = both + count * 2 * inner * size
        self.qkv.matmul_at(kind, inputs.data_ptr(), more, qkv)
        to_k, to_v, strides = k.data_ptr(), v.data_ptr(), (*k.stride()[:3], *v.stride()[:3])
        at_k, at_v = to_k + first * strides[1] * size, to_v + first * strides[4] * size
        tables = cos.data_ptr(), sin.data_ptr(), 0
        layer.rotation()(
            kind, qkv, fused, *tables, q, at_k, at_v, _Strides(*strides), 1, more, heads, shared, dim, cos.shape[-1]
        )
        q += (more - count) * own * size
        last, masked = (0, None) if mask is None else (mask.shape[1], mask.data_ptr())
        steps = _Steps(0, own, dim, *strides, 0, own, dim, 0, last)
        slots = first + more
        threads = library.threads(2 * count * own * slots)
        sizes = 1, count, heads, shared, slots, last, dim, threads
        if attention.kernel()(kind, q, to_k, to_v, read, masked, None, steps, None, *sizes):
            raise MemoryError(f"no memory for the attention of {count} queries of {dim} dimensions")
        self.out.matmul_at(kind, read, count, attended, h.data_ptr())
        layer.norm()(attended, self.norm.data_ptr(), normed, kind, count, width, self.epsilon)
        self.gate_up.matmul_at(kind, normed, count, both)
        layer.gate()(both, gated, kind, count, inner)
        self.down.matmul_at(kind, gated, count, out.data_ptr(), attended)
        return out
