"""The Triton kernels as operations of PyTorch, so that torch.compile puts them into its graphs and fuses around them.

    torch.ops.pardec.rotary, rotary_into_cache, swiglu, add_norm, attention

Outside of torch.compile the wrappers are called directly: an operation's dispatch takes as long as a launch.
"""

from __future__ import annotations

from torch import Tensor
from torch.library import custom_op

from .attention_triton import run_attention
from .glu_triton import swiglu_triton
from .norm_triton import add_norm_triton
from .rotary_triton import HeadNorms, launch_rotary, rotate_triton


@custom_op("pardec::rotary", mutates_args=())
def rotary(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, q_gain: Tensor | None, k_gain: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The rotated queries and keys of qkv [B, Q, H + 2 K, D], normed before where there are gains."""
    return rotate_triton(qkv, cos, sin, heads, _norms(q_gain, k_gain, eps))


@rotary.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, *more: object) -> tuple[Tensor, Tensor]:
    batch, queries, total, dim = qkv.shape
    return qkv.new_empty(batch, queries, heads, dim), qkv.new_empty(batch, queries, (total - heads) // 2, dim)


@custom_op("pardec::rotary_into_cache", mutates_args=("k", "v"))
def rotary_into_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    k: Tensor,
    v: Tensor,
    flat: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    eps: float,
) -> Tensor:
    """The queries of `rotary`; keys and values go to the slots `flat` [B * Q] of `k` and `v`."""
    return launch_rotary(qkv, cos, sin, heads, k, v, flat, _norms(q_gain, k_gain, eps))


@rotary_into_cache.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, *more: object) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], heads, qkv.shape[3])


def _norms(q_gain: Tensor | None, k_gain: Tensor | None, eps: float) -> HeadNorms | None:
    return None if q_gain is None or k_gain is None else (q_gain, k_gain, eps)


@custom_op("pardec::swiglu", mutates_args=())
def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [..., M] of `gate_up` [..., 2 M]."""
    return swiglu_triton(gate_up)


@swiglu.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


@custom_op("pardec::add_norm", mutates_args=())
def add_norm(h: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h + x [..., E], and its norm."""
    return add_norm_triton(h, x, weight, eps)


@add_norm.register_fake
def _(h: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape)


@custom_op("pardec::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    lengths: Tensor,
    rows: Tensor | None,
    allowed: Tensor | None,
    parents: Tensor | None,
    base: Tensor | None,
    nodes: Tensor | None,
    kind: int,
    extent: int,
    block: int,
) -> Tensor:
    """Attention of q [B, Q, H, D] over slots of k and v [R, >= S, K, D]; see `attention_triton`."""
    return run_attention(q, k, v, positions, lengths, rows, allowed, parents, base, nodes, kind, extent, block)


@attention.register_fake
def _(q: Tensor, *more: object) -> Tensor:
    return q.new_empty(q.shape)
