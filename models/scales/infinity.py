"""Infinity's transformer: VAR's blocks with cross-attention to a caption, over maps of codes that are drawn bit by bit.

Infinity: Scaling Bitwise AutoRegressive Modeling for High-Resolution Image Synthesis, https://arxiv.org/abs/2412.04431

    x <- x + g1 attn((1 + s1) LN(x) + b1);  x <- x + cross(LN'(x), caption);  x <- x + g2 mlp((1 + s2) LN(x) + b2)
    attn as VAR's, normalised, then the queries and keys of the token at (r, c) of a map of side n are rotated by
    round(64 r / n) f_k and round(64 c / n) f_k, half of a head's pairs each
    condition   attention of one learned query over the caption's features, which modulates and begins the first map

Features of a caption are a text encoder's states, one per token. Modules carry the published names, but for `attn`,
published as `sa`. Letters: R captions, T tokens of the longest, n tokens fed, L tokens of an image, D width, H head.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..kernels.matmul import Linear
from ..layers.layer import attention, mlp, modulated
from ..layers.rope import default_frequencies
from .contracts import Scales
from .transformer import Block, MapTransformer, Modulation, ScaleCache

GRID = 64  # positions along a side, at every size: the last map of the largest images
_THETA = 10000.0


class CrossAttention(nn.Module):
    """Attention of queries over a caption; without `queries` of one learned query."""

    def __init__(self, width: int, features: int, heads: int, *, queries: bool) -> None:
        super().__init__()
        self.heads = heads
        self.mat_q: Any = Linear(width, width) if queries else nn.Parameter(torch.randn(1, heads, width // heads))
        self.mat_kv = Linear(features, 2 * width, bias=False)
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.proj = Linear(width, width)

    def keys_and_values(self, caption: Tensor) -> tuple[Tensor, Tensor]:
        """[R, T, heads, H] each, of a caption's states [R, T, features]."""
        k, v = self.mat_kv(caption).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        return k, v + self.v_bias.view(self.heads, -1)

    def forward(self, x: Tensor | None, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """[R, n, D] of x [R, n, D], or [R, 1, D] of the learned query; `mask` [R, 1, 1, T] bool, None for all."""
        q = self.mat_q.expand(len(k), 1, -1, -1) if x is None else self.mat_q(x).unflatten(-1, (self.heads, -1))
        out: Tensor = self.proj(attention(q, k, v, mask))
        return out


class CaptionBlock(Block):
    """VAR's block with cross-attention between its two parts."""

    def __init__(self, width: int, heads: int, hidden: int, *, shared: bool, eps: float) -> None:
        super().__init__(width, heads, hidden, normalised=True, shared=shared, eps=eps)
        self.ca = CrossAttention(width, width, heads, queries=True)
        self.ca_norm = nn.LayerNorm(width, eps=eps)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        how: Modulation,
        cache: ScaleCache,
        layer: int,
        rows: Tensor | None,
        mask: Tensor | None,
        turn: Tensor,
        caption: tuple[Tensor, Tensor, Tensor | None],
    ) -> Tensor:
        mixed = self.attn(modulated(x, how.scale1, how.shift1, self.eps), cache, layer, rows, mask, turn)
        x = torch.addcmul(x, how.gate1, mixed)
        x = x + self.ca(self.ca_norm(x), *caption)
        return torch.addcmul(x, how.gate2, mlp(modulated(x, how.scale2, how.shift2, self.eps), self.ffn, "tanh"))


@dataclass(frozen=True, slots=True, eq=False)
class Captions:
    """The captions of a request, as the blocks read them."""

    condition: Tensor  # [R, D]
    keys: list[tuple[Tensor, Tensor]]  # per layer [R, T, heads, H]
    mask: Tensor | None  # [R, 1, 1, T] bool: the tokens of each caption; None where all have T


class InfinityTransformer(MapTransformer):
    """A `ScaleTransformer`; forwards need the captions of `reading`, and labels count these."""

    captions: Captions | None = None
    _turns: Tensor | None = None  # [2, 1, L, 1, H / 2] of the scales

    def __init__(
        self,
        scales: Scales,
        *,
        width: int,
        depth: int,
        heads: int,
        bits: int,
        hidden: int,
        levels: int,
        features: int,
        longest: int,
        pool_heads: int,
        shared: bool = True,
        eps: float = 1e-6,
    ) -> None:
        """`features` is the width of a caption's features, `longest` the most tokens of a caption."""
        super().__init__(scales, width=width, heads=heads, classes=0, eps=eps)
        self.cfg_uncond = nn.Parameter(torch.randn(longest, features) / features**0.5)
        self.text_norm = nn.RMSNorm(features, eps=eps)
        self.text_proj_for_sos = nn.ModuleDict({"ca": CrossAttention(width, features, pool_heads, queries=False)})
        self.text_proj_for_ca = nn.Sequential(
            Linear(features, width), nn.GELU(approximate="tanh"), Linear(width, width)
        )
        self.pos_start = nn.Parameter(torch.randn(1, 1, width) / width**0.5)
        self.lvl_embed = nn.Embedding(levels, width)
        self.word_embed = Linear(bits, width)
        self.shared_ada_lin = nn.Sequential(nn.SiLU(), Linear(width, 6 * width)) if shared else None
        self.blocks = nn.ModuleList([CaptionBlock(width, heads, hidden, shared=shared, eps=eps) for _ in range(depth)])
        self.head_nm = nn.ModuleDict({"ada_lin": nn.Sequential(nn.SiLU(), Linear(width, 2 * width))})
        self.head = Linear(width, 2 * bits)

    def capture(self, graphs: Any, make: Any) -> None:
        """Captures nothing: the keys of captions are other tensors at every request."""

    def of_scales(self, scales: Scales) -> Self:
        """This transformer, with the same weights, for images of these token maps."""
        other = copy(self)
        other.scales, other._turns = scales, None
        return other

    def reading(self, texts: Sequence[Tensor]) -> Self:
        """This transformer for a request with these captions: features [T_i, features] of each."""
        self._table()  # for all requests
        own = self.pos_start
        lengths = torch.tensor([len(text) for text in texts], device=own.device)
        states = self.text_norm(pad_sequence([text.to(own) for text in texts], batch_first=True))
        mask = None
        if len(set(map(len, texts))) > 1:
            mask = (torch.arange(states.shape[1], device=own.device) < lengths[:, None])[:, None, None]
        pool, projected = cast(CrossAttention, self.text_proj_for_sos["ca"]), self.text_proj_for_ca(states)
        other = copy(self)
        other.captions = Captions(
            condition=pool(None, *pool.keys_and_values(states), mask)[:, 0],
            keys=[block.ca.keys_and_values(projected) for block in cast(list[CaptionBlock], self.blocks)],
            mask=mask,
        )
        return other

    def condition(self, labels: Tensor) -> Tensor:
        assert self.captions is not None, "the transformer is one that `reading` returned"
        return self.captions.condition[labels]

    def block_inputs(
        self, layer: int, labels: Tensor, rows: Tensor | None, at: slice, which: Tensor | None
    ) -> tuple[Any, ...]:
        assert self.captions is not None, "the transformer is one that `reading` returned"
        (k, v), mask = self.captions.keys[layer], self.captions.mask
        if len(labels) != len(k) or rows is not None:
            k, v, mask = k[labels], v[labels], None if mask is None else mask[labels]
        turn = self._table()[:, :, at]
        if which is not None:
            size = self.scales.sizes[self._scale_of(at.stop)]
            earlier, last = turn[:, :, :-size].expand(-1, len(which), -1, -1, -1), turn[:, 0, -size:]
            turn = torch.cat((earlier, last[:, which]), 2)
        return turn, (k, v, mask)

    def _scale_of(self, stop: int) -> int:
        return self.scales.starts.index(stop) - 1

    def _table(self) -> Tensor:
        """[2, 1, L, 1, H / 2] float32: cosines and sines of all tokens of an image."""
        if self._turns is None:
            frequencies = default_frequencies(_THETA, self.width // self.heads // 2)
            angles = []
            for side in self.scales.sides:
                place = (torch.arange(side) * (GRID / side)).round()  # halves to even, as published
                along = place[:, None] * frequencies
                both = (along[:, None].expand(-1, side, -1), along[None].expand(side, -1, -1))
                angles.append(torch.cat(both, -1).flatten(0, 1))
            angle = torch.cat(angles)[None, :, None]
            self._turns = torch.stack((angle.cos(), angle.sin())).to(self.pos_start.device)
        return self._turns
