"""A Llama in plain PyTorch on one flat vector of weights: the streams of block diffusion, and decoding for texts.

All weights are one float32 vector, the master, and one bfloat16 copy that forwards read; so are their gradients. The
optimizer's step is then a handful of operations, and a training step can be captured as one CUDA graph.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_runs.smollm2 import Shape


class Weights:
    """The weights of `shape` by name, as views of flat vectors."""

    def __init__(self, shape: Shape, tensors: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device = shape, device
        flat = torch.cat([tensors[name].flatten() for name in shape.names()])
        self.master = flat.to(device, torch.float32)
        self.flat = self.master.to(dtype).requires_grad_()
        self.flat.grad = torch.zeros_like(self.flat)

    def refresh(self) -> None:
        """Copies the master weights to the copy that forwards read."""
        with torch.no_grad():
            self.flat.copy_(self.master)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors of a flat vector by name."""
        sizes = self.shape.names()
        parts = flat.split([math.prod(size) for size in sizes.values()])
        return {name: part.view(size) for (name, size), part in zip(sizes.items(), parts, strict=True)}

    def matrices(self) -> tuple[Tensor, list[list[Tensor]], Tensor]:
        """The embedding, each layer's [norm, qkv, out, norm, gate and up, down], and the final norm, with gradients."""
        shape = self.shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sizes = [(shape.width,), (q + 2 * kv, shape.width), (shape.width, q)]
        sizes += [(shape.width,), (2 * shape.mlp_width, shape.width), (shape.width, shape.mlp_width)]
        whole = [(shape.vocab, shape.width), *(size for _ in range(shape.layers) for size in sizes), (shape.width,)]
        parts = self.flat.split([math.prod(size) for size in whole])
        shaped = [part.view(size) for part, size in zip(parts, whole, strict=True)]
        return shaped[0], [shaped[at : at + 6] for at in range(1, len(shaped) - 1, 6)], shaped[-1]


def rotary(shape: Shape, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., D] of `positions` [...]."""
    half = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32) / shape.head_dim
    angles = positions[..., None].float() * shape.theta**-half
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., S, D] turned by angles that broadcast to it."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def states(weights: Weights, ids: Tensor, positions: Tensor, masks: tuple[Tensor, Tensor]) -> Tensor:
    """States [B, 3, L, E] after the final norm of two views and the clean tokens, `ids` [B, 3, L].

    Token i of a view sees key j of [the view, the clean tokens] where the first mask [B, L, 2 L] is true; a clean token
    sees clean token j where the second [B, L, L] is. Views see nothing of each other, so no query meets their keys.
    """
    shape = weights.shape
    rows, count, length = ids.shape
    embed, layers, norm = weights.matrices()
    h = F.embedding(ids, embed)
    cos, sin = (table[:, None, None] for table in rotary(shape, positions, h.dtype))
    of_view, of_clean = (
        torch.zeros(mask.shape, dtype=h.dtype, device=h.device).masked_fill(~mask, -torch.inf)[:, None]
        for mask in masks
    )
    of_view = of_view.repeat_interleave(2, 0)  # both views of a row
    heads, kv, size = shape.heads, shape.kv_heads, shape.head_dim
    for attn_norm, qkv, out, mlp_norm, gate_up, down in layers:
        x = F.linear(F.rms_norm(h, (shape.width,), attn_norm, shape.eps), qkv)
        x = x.view(rows, count, length, heads + 2 * kv, size).transpose(2, 3)  # [B, 3, H, L, D]
        q, k, v = x.split([heads, kv, kv], 2)
        q = rotate(q, cos, sin)
        k, v = (each.repeat_interleave(heads // kv, 2) for each in (rotate(k, cos, sin), v))
        keys, values = (torch.cat([each[:, :2], each[:, 2:].expand(-1, 2, -1, -1, -1)], 3) for each in (k, v))
        views = F.scaled_dot_product_attention(
            q[:, :2].flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), attn_mask=of_view
        )
        clean = F.scaled_dot_product_attention(q[:, 2], k[:, 2], v[:, 2], attn_mask=of_clean)
        attended = torch.cat([views.unflatten(0, (rows, 2)), clean[:, None]], 1)
        h = h + F.linear(attended.transpose(2, 3).reshape(*ids.shape, heads * size), out)
        gate, up = F.linear(F.rms_norm(h, (shape.width,), mlp_norm, shape.eps), gate_up).chunk(2, -1)
        h = h + F.linear(F.silu(gate) * up, down)
    return F.rms_norm(h, (shape.width,), norm, shape.eps)


class Cached:
    """Keys and values of rows that are decoded in lock step, each at its own length."""

    def __init__(self, weights: Weights, rows: int, capacity: int) -> None:
        shape = weights.shape
        self.weights, self.capacity = weights, capacity
        size = (shape.layers, rows, shape.kv_heads, capacity, shape.head_dim)
        self.keys = torch.zeros(size, device=weights.device, dtype=weights.flat.dtype)
        self.values = torch.zeros_like(self.keys)

    @torch.no_grad()
    def logits(self, ids: Tensor, at: Tensor) -> Tensor:
        """Logits [B, V] after one token per row, `ids` [B], stored at slot `at` [B]; slots up to that one are seen."""
        shape, rows = self.weights.shape, torch.arange(len(ids), device=ids.device)
        embed, layers, norm = self.weights.matrices()
        h = F.embedding(ids, embed)
        cos, sin = (table[:, None, None] for table in rotary(shape, at, h.dtype))
        seen = torch.arange(self.capacity, device=ids.device) <= at[:, None]
        bias = torch.zeros(seen.shape, dtype=h.dtype, device=h.device).masked_fill(~seen, -torch.inf)[:, None, None]
        heads, kv, size = shape.heads, shape.kv_heads, shape.head_dim
        for index, (attn_norm, qkv, out, mlp_norm, gate_up, down) in enumerate(layers):
            x = F.linear(F.rms_norm(h, (shape.width,), attn_norm, shape.eps), qkv).view(len(ids), -1, 1, size)
            q, k, v = x.split([heads, kv, kv], 1)
            self.keys[index][rows, :, at] = rotate(k, cos, sin)[:, :, 0]
            self.values[index][rows, :, at] = v[:, :, 0]
            # The query heads that share a key head are queries of one head: no key is copied.
            q = rotate(q, cos, sin).view(len(ids), kv, heads // kv, size)
            attended = F.scaled_dot_product_attention(q, self.keys[index], self.values[index], attn_mask=bias)
            h = h + F.linear(attended.reshape(len(ids), heads * size), out)
            gate, up = F.linear(F.rms_norm(h, (shape.width,), mlp_norm, shape.eps), gate_up).chunk(2, -1)
            h = h + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(h, (shape.width,), norm, shape.eps), embed)
