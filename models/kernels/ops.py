"""The operations of a decoder layer: their definitions in PyTorch, and the choice of the versions that a forward runs.

    norm(x)           x / sqrt(mean(x^2) + eps) * w, in float32 whatever x is
    rotary_and_cache  (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of the first R dimensions of a head,
                      in float32; keys and values are written where a cache keeps them
    glu               activation(gate) * up, gate and up being the halves of one matmul's result

On a GPU, layers with plain weights in 16 bits run fewer and larger operations (`Fused`):

    add_norm          (h, x) -> (h + x, norm(h + x))
    norm_rotary       rotary_and_cache of queries and keys whose heads are normalised before

Matmuls are the library's, without a norm before or a gate after them: on an H200 kernels of our own that computed
those too took 1.1 to 3.9 times as long as the separate ones, at every number of rows (benchmarks/gpu.md).

A forward takes one `Ops` for each device it runs on, and its layers ask for no version again. `attend` is not among
them: which version of it runs depends on what the queries see, and the `AttentionPattern` of the forward says it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..decoder_config import Activation
from .choice import Backend, backend
from .cpu import library
from .cpu.layers import apply_rotary_c, norm_c, swiglu_c
from .variable import VARIABLE

if TYPE_CHECKING:
    from ..caches.kv_cache import Slots

_SMALL = 2**16  # below this many entries, the number of operations decides the time of a rotation


@dataclass(frozen=True, slots=True)
class Ops:
    """A set of versions of `norm`, `rotary_and_cache` and `glu`, with the signatures of the definitions.

    `version` names it, for other modules that compute on the same device.
    """

    version: Backend
    norm: Callable[[Tensor, Tensor, float], Tensor]
    rotary_and_cache: Callable[[Tensor, Tensor, Tensor, int, Slots | None, int], tuple[Tensor, Tensor, Tensor]]
    glu: Callable[[Tensor, Activation], Tensor]
    fused: Fused | None = None


@dataclass(frozen=True, slots=True)
class Fused:
    """Operations of a layer that run as one kernel each, of states [M, E] and plain weights in 16 bits."""

    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]  # h, x, gain, eps
    norm_rotary: Callable[..., tuple[Tensor, Tensor, Tensor]]  # `rotary_and_cache`; last the heads' gains and epsilon


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., E] normalised and multiplied by `weight` [E], in x's dtype."""
    if x.dtype != torch.float32 or not x.is_cpu or x.requires_grad:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    # On a CPU the library's norm runs a dozen small operations; these are five.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(_constant(eps), length, length, value=1 / x.shape[-1])
    return (x * mean_square.rsqrt_()).mul_(weight)


@cache
def _constant(value: float) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, device="cpu")


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading R dimensions of x [B, Q, H, D] in float32; `sin` carries the sign of the half-split."""
    dim = cos.shape[-1]
    half = dim // 2
    part = (x if dim == x.shape[-1] else x[..., :dim]).float()
    out = part * cos
    if part.numel() < _SMALL:
        out.addcmul_(part.roll(half, -1), sin)
    else:  # no temporary tensors of this size
        out[..., :half].addcmul_(part[..., half:], sin[..., :half])
        out[..., half:].addcmul_(part[..., :half], sin[..., half:])
    if out.dtype != x.dtype:
        out = out.to(x.dtype)
    return out if dim == x.shape[-1] else torch.cat((out, x[..., dim:]), -1)


def rotary_and_cache(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, slots: Slots | None, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries [B, Q, H, D], and the keys and values to attend to, [rows, >= S, K, D] each.

    Args:
        qkv: [B, Q, H + 2 K, D], queries, keys and values of each head.
        cos: [B or 1, Q, 1, R] float32; `sin` the same, with the sign of the half-split.
        heads: H.
        slots: where the cache keeps this forward's keys and values; None: they are not kept, and attend to themselves.
        layer: index of the layer in the cache.
    """
    kv_heads = (qkv.shape[2] - heads) // 2
    to_rotate, v = qkv.split_with_sizes((heads + kv_heads, kv_heads), 2)
    q, k = apply_rotary(to_rotate, cos, sin).split_with_sizes((heads, kv_heads), 2)
    if slots is None:
        return q, k, v
    if slots.views is None:
        return q, *slots.write(layer, k, v)
    to_k, to_v, from_k, from_v = slots.views[layer]
    to_k.copy_(k)
    to_v.copy_(v)
    return q, from_k, from_v


def rotary_and_cache_c(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, slots: Slots | None, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`rotary_and_cache` in C; the definition where keys and values go to slices of a cache of another dtype."""
    if slots is None:
        return *apply_rotary_c(qkv, cos, sin, heads, None), qkv[:, :, (heads + qkv.shape[2]) // 2 :]
    if slots.views is None:
        q, k = apply_rotary_c(qkv, cos, sin, heads, None)
        return q, *slots.write(layer, k, qkv[:, :, (heads + qkv.shape[2]) // 2 :])
    to_k, to_v, from_k, from_v = slots.views[layer]
    if to_k.dtype != qkv.dtype:
        return rotary_and_cache(qkv, cos, sin, heads, slots, layer)
    q, _ = apply_rotary_c(qkv, cos, sin, heads, (to_k, to_v))
    return q, from_k, from_v


def glu(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """[..., M] of `gate_up` [..., 2 M], which may be overwritten where no gradients are needed."""
    gate, up = gate_up.chunk(2, -1)
    if activation != "silu":
        return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
    # In place where no gradients are needed: a fresh tensor of this size costs more than the arithmetic.
    return F.silu(gate) * up if gate_up.requires_grad else F.silu(gate, inplace=True).mul_(up)


def glu_c(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """`glu` in C, for the activation that the kernel supports."""
    return swiglu_c(gate_up) if activation == "silu" else glu(gate_up, activation)


REFERENCE = Ops("reference", norm, rotary_and_cache, glu)
C = Ops("c", norm_c, rotary_and_cache_c, glu_c)


def choose_ops(device: torch.device, dtype: torch.dtype, *, reference: bool = False) -> Ops:
    """The fastest operations for states of `dtype` on `device`, as `backend` chooses; with `reference`, definitions.

    Asked at each forward, since gradients and the dispatch modes that follow operations come and go between two.
    """
    if reference:
        return REFERENCE
    watched = torch.is_grad_enabled(), torch._C._len_torch_dispatch_stack()
    return _known(device, dtype, os.environ.get(VARIABLE), watched, library.kernel, library.supported)


@lru_cache
def _known(device: torch.device, dtype: torch.dtype, name: str | None, watched: object, *asked: object) -> Ops:
    """The cached choice; the arguments are all values that it depends on (tests replace the functions `asked`)."""
    chosen = backend(device, dtype)
    if chosen == "triton":
        in_16_bits = dtype in (torch.float16, torch.bfloat16) and not torch.is_grad_enabled()
        return triton_ops(all_of_them=name == "triton", fused=in_16_bits)
    return C if chosen == "c" else REFERENCE


@cache
def triton_ops(*, all_of_them: bool, fused: bool = False) -> Ops:
    """The operations in Triton; its norm, which is no faster than PyTorch's, only with `all_of_them`."""
    from . import torch_ops as compiled
    from .glu_triton import swiglu_triton
    from .norm_triton import add_norm_triton, norm_triton
    from .rotary_triton import rotate_into_triton, rotate_triton

    own_norm = norm_triton if all_of_them else norm
    compiling = torch.compiler.is_compiling  # then operations of PyTorch are called, which torch.compile fuses around

    def rotary_and_cache_triton(
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        heads: int,
        slots: Slots | None,
        layer: int,
        norms: tuple[Tensor, Tensor, float] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = norms or (None, None, 0.0)
        if slots is not None and not slots.stored:
            if not compiling():
                return rotate_into_triton(qkv, cos, sin, heads, slots, layer, norms)
            kept = slots.cache.k[layer], slots.cache.v[layer]
            return compiled.rotary_into_cache(qkv, cos, sin, heads, *kept, slots.flat, *given), *kept
        if compiling():
            q, k = compiled.rotary(qkv, cos, sin, heads, *given)
        else:
            q, k = rotate_triton(qkv, cos, sin, heads, norms)
        v = qkv[:, :, (heads + qkv.shape[2]) // 2 :]
        return (q, k, v) if slots is None else (q, *slots.write(layer, k, v))

    def glu_triton(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
        if activation != "silu":
            return glu(gate_up, activation)
        return compiled.swiglu(gate_up) if compiling() else swiglu_triton(gate_up)

    def add_norm(h: Tensor, x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return (compiled.add_norm if compiling() else add_norm_triton)(h, x, gain, eps)

    return Ops(
        "triton",
        own_norm,
        rotary_and_cache_triton,
        glu_triton,
        Fused(add_norm, rotary_and_cache_triton) if fused else None,
    )
