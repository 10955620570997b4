"""Attention by its formula, and forwards with it from a decoder's weights: one row, one head at a time, in float64.

Keys and values of every layer are kept until they are computed again, so that a cache is defined by the positions that
are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pardec.models.kernels import layout


class Eager:
    """The text of one row and its keys and values."""

    def __init__(self, model: Any, length: int, visible: Callable[[int, int], bool] = lambda p, s: True) -> None:
        """`visible(p, s)` tells whether position p attends to position s."""
        self.model, self.config = model, model.decoder.config
        self.length, self.visible = length, visible
        shape = (self.config.layers, length, self.config.kv_heads, self.config.head_dim)
        self.stored: set[int] = set()
        self.k, self.v = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)

    def forward(self, tokens: Sequence[int], positions: Sequence[int]) -> tuple[dict[int, Tensor], list[Tensor]]:
        """Computes `positions`; returns the logits [V] of each, and the mean weights [Q, L] of every layer."""
        decoder, config = self.model.decoder, self.config
        self.stored.update(positions)
        h = decoder.embed.weight.double()[[tokens[p] for p in positions]]
        maps = []
        for index, layer in enumerate(decoder.layers):
            q, k, v = self._heads(layer, _norm(h, layer.attn_norm, config.norm_eps), positions)
            self.k[index, list(positions)], self.v[index, list(positions)] = k, v
            out, mean = self._attend(q, index, positions)
            maps.append(mean)
            h = h + out @ _weight(layer.out_weight).T
            gate, up = (_norm(h, layer.mlp_norm, config.norm_eps) @ _weight(layer.gate_up_weight).T).chunk(2, -1)
            h = h + (torch.nn.functional.silu(gate) * up) @ _weight(layer.down_weight).T
        logits = _norm(h, decoder.norm.weight, config.norm_eps) @ _weight(decoder.head.weight).T
        return dict(zip(positions, logits, strict=True)), maps

    def _heads(self, layer: Any, x: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        qkv = x @ _weight(layer.qkv_weight).T
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias.double()
        heads = qkv.view(len(positions), -1, config.head_dim)
        q, k, v = torch.split(heads, [config.heads, config.kv_heads, config.kv_heads], 1)
        if config.qk_norm:
            q, k = (_norm(each, by, config.norm_eps) for each, by in ((q, layer.q_norm), (k, layer.k_norm)))
        angle = torch.tensor(positions, dtype=torch.float64)[:, None] * torch.tensor(config.frequencies).double()
        cos, sin = (torch.cat((each, each), -1)[:, None] for each in (angle.cos(), angle.sin()))
        return _rotated(q, cos, sin), _rotated(k, cos, sin), v

    def _attend(self, q: Tensor, index: int, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        group = self.config.heads // self.config.kv_heads
        seen = torch.tensor([[s in self.stored and self.visible(p, s) for s in range(self.length)] for p in positions])
        outs, weights = [], []
        for head in range(self.config.heads):
            scores = q[:, head] @ self.k[index, :, head // group].T / self.config.head_dim**0.5
            weights.append(scores.masked_fill(~seen, -torch.inf).softmax(-1))
            outs.append(weights[-1] @ self.v[index, :, head // group])
        return torch.cat(outs, -1), torch.stack(weights).mean(0)


def attention(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, cap: float | None = None, sink: bool = False
) -> Tensor:
    """One softmax over what each query sees, in float64: q [B, Q, H, D], k and v [B, S, K, D], allowed [B, Q, S].

    A sink adds one to each sum. A query that sees nothing gets 0. Slots that none sees may hold NaN, or lie beyond S.
    """
    q, k, v = q.double(), k.double(), v.double().nan_to_num()
    k, v = (each[:, : allowed.shape[2]].repeat_interleave(q.shape[2] // k.shape[2], 2) for each in (k, v))
    scores = torch.einsum("bqhd,bshd->bqhs", q, k) / q.shape[-1] ** 0.5
    scores = scores if cap is None else cap * (scores / cap).tanh()
    powers = scores.exp().masked_fill(~allowed[:, :, None], 0)
    weights = powers / (powers.sum(-1, keepdim=True) + sink).clamp(min=torch.finfo(torch.float64).tiny)
    return torch.einsum("bqhs,bshd->bqhd", weights, v)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _weight(weight: Tensor) -> Tensor:
    return layout.dense(weight.detach()).double()
