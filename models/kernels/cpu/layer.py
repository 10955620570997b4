"""Norm, rotation and gate by kernels in C, of float32 or bfloat16: each is one pass where PyTorch takes several.

What is computed is float32 in either case, and rounded where the definitions round it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import library
from .library import COUNT, POINTER, STEP, TYPES

_FILE = Path(__file__).with_name("layer.c")
_NORM = (*[POINTER] * 3, COUNT, COUNT, COUNT, ctypes.c_float)
_GATE = (POINTER, POINTER, COUNT, COUNT, COUNT)
_ROTARY = (COUNT, POINTER, STEP, POINTER, POINTER, STEP, *[POINTER] * 4, *[COUNT] * 6)
_Steps = ctypes.c_ssize_t * 6


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run now for states of this dtype on `device`."""
    fits = device.type == "cpu" and dtype in TYPES and not torch.is_grad_enabled() and not library.is_traced()
    return fits and library.allowed() and norm() is not None


def norm_c(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., E] normalised and multiplied by `weight` [E], in x's dtype."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if weight.dtype is not x.dtype:
        weight = weight.to(x.dtype)
    width = weight.shape[0]
    run = norm()
    run(x.data_ptr(), weight.data_ptr(), out.data_ptr(), TYPES[x.dtype], x.numel() // width, width, eps)
    return out


def swiglu_c(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [..., M] of `gate_up` [..., 2 M]."""
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype)
    run = gate()
    run(gate_up.data_ptr(), out.data_ptr(), TYPES[gate_up.dtype], out.numel() // width, width)
    return out


def apply_rotary_c(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, target: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys, [B, Q, H or K, D]; with `target`, keys and values go there, [B, Q, K, D] each,
    of the same dtype.

    Args:
        qkv: [B, Q, H + 2 K, D], queries, keys and values of each head; the last two dimensions lie together.
        cos: [B or 1, Q, 1, R] float32; `sin` the same, with the sign of the half-split.
        heads: H.
    """
    batch, queries, total, dim = qkv.shape
    kv, rotated = (total - heads) // 2, cos.shape[-1]
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    q = torch.empty((batch, queries, heads, dim), dtype=qkv.dtype)
    k, v = (torch.empty((batch, queries, kv, dim), dtype=qkv.dtype), None) if target is None else target
    steps = _Steps(*k.stride()[:3], *(k if v is None else v).stride()[:3])
    apart = 0 if cos.shape[0] == 1 else queries * rotated
    tables = cos.data_ptr(), sin.data_ptr(), apart
    outputs = q.data_ptr(), k.data_ptr(), None if v is None else v.data_ptr(), steps
    run = rotation()
    run(TYPES[qkv.dtype], qkv.data_ptr(), total * dim, *tables, *outputs, batch, queries, heads, kv, dim, rotated)
    return q, k


def norm() -> Any:
    """The compiled norm; None where there is none."""
    return library.kernel(_FILE, "pardec_norm", _NORM)


def gate() -> Any:
    """The compiled gate, from the library of the norm."""
    return library.kernel(_FILE, "pardec_gate", _GATE)


def rotation() -> Any:
    """The compiled rotation, from the library of the norm."""
    return library.kernel(_FILE, "pardec_turn", _ROTARY)
