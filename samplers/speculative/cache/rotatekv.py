"""Stores older K/V in about two bits, after rotations that spread outliers over the channels.

RotateKV: Accurate and Robust 2-Bit KV Cache Quantization for LLMs via Outlier-Aware Adaptive Rotations,
https://arxiv.org/abs/2501.16383

    values: v H_D of each head;  keys, before the rotary embedding: (k_1 .. k_g) H_gD of g heads together, in the order
    of their channels' sums;  then per token, a group of channels sharing  scale = (max - min) / (2^bits - 1)

H is the normalised Walsh-Hadamard matrix, its own inverse. The order puts channels of like size into one group. The
first tokens, whose keys and values differ from all others, stay exact.

Deviates from the authors' code: the order is that of sums of absolute values in what a row encodes first, not of signed
sums in a calibration set. Values are rotated when they are written and read, and not in the model's weights. The number
of heads rotated together is the largest power of two that divides them, at most `heads`; channels that are no power of
two are rotated in blocks that are. The first `sinks` tokens stay exact; the authors find such tokens by their norms.
`clip` shrinks a group's range about its middle, where theirs scales minimum and maximum apart; levels are 2^bits,
theirs bits^2, which is one too many at 3. `bits=16` rotates and keeps all.
Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated

import torch
from torch import Tensor

from pardec.models.kv_stores.contracts import ChunkShape, Codec, Layout, Parts, Store
from pardec.models.kv_stores.groups import dequantize, group_layout, group_size, quantize

from ...registry import register
from .stored_cache import StoredKV

_CLIP = 0.8  # the authors' at 2 bits


@register("rotatekv", checked="reference:reference.naive_stores.rotated")
class RotateKV(StoredKV):
    bits: Annotated[int, "bits per code: 2, 3, 4 or 8; 16 only rotates"] = 2
    group: Annotated[int, "most channels that share a scale; fewer if this does not divide the rotated ones"] = 64
    heads: Annotated[int, "most heads whose keys are rotated together"] = 4
    clip: Annotated[float | None, "share of a group's range that codes span; none: 0.8 at 2 bits, else 1"] = None
    sinks: Annotated[int, "first tokens that stay exact"] = 1
    residual: Annotated[int, "newest tokens that stay exact"] = 32
    chunk: Annotated[int, "tokens that are encoded together"] = 32
    aligned: Annotated[bool, "end drafts where the next chunk is encoded, so that drafting changes no token"] = True

    def __post_init__(self) -> None:
        self.require("group", "heads", "residual", "chunk", least=1)
        self.require("sinks", least=0)
        self.require("clip", least=0.1, most=1)
        self.require_bits(self.bits)

    @cached_property
    def store(self) -> Store:
        clip = self.clip if self.clip is not None else _CLIP if self.bits == 2 else 1.0
        return Store(
            Rotated(self.bits, self.group, heads=self.heads, clip=clip, reorder=True),
            Rotated(self.bits, self.group, clip=clip),
            self.chunk,
            self.residual,
            self.sinks,
            before_rotation=True,
        )


@cache
def hadamard(size: int) -> Tensor:
    """The normalised Walsh-Hadamard matrix [size, size], float64 and its own inverse; `size` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    result: Tensor = matrix / size**0.5
    return result


def rotate(x: Tensor, size: int) -> Tensor:
    """Each block of `size` channels of x [..., C] times the Hadamard matrix: its own inverse."""
    blocks = x.reshape(-1, size) @ hadamard(size).to(x.device, x.dtype)
    result: Tensor = blocks.view(x.shape)
    return result


@dataclass(frozen=True)
class Rotated(Codec):
    """Groups of `heads` heads are rotated together, by blocks of the largest power of two that divides their channels.

    With `reorder`, a row's rotated channels are sorted by the sums of their absolute values in its first chunks, so
    that channels of like size share a scale. With 16 bits they are rotated, and kept as they are.
    """

    bits: int
    group: int  # maximum number of channels that share a scale
    heads: int = 1
    clip: float = 1.0
    reorder: bool = False

    def layout(self, shape: ChunkShape) -> Layout:
        count = shape.tokens * shape.heads * shape.dim
        if self.bits == 16:
            return {"values": ((count,), shape.dtype)}
        return group_layout(count, count // group_size(self._width(shape.heads, shape.dim), self.group), self.bits)

    def calibration_layout(self, shape: ChunkShape) -> Layout:
        return {"order": ((shape.heads * shape.dim,), torch.int16)} if self.reorder else {}

    def calibrate(self, first: Tensor) -> Parts:
        if not self.reorder:
            return {}
        sums = self._rotated(first).abs().sum((0, 1))  # [groups, width]
        return {"order": sums.argsort(dim=-1, stable=True).flatten().to(torch.int16)}

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        rotated = self._rotated(x)
        if self.reorder:
            rotated = rotated.gather(-1, _order(calibration, rotated))
        flat = rotated.flatten(1)
        if self.bits == 16:
            return {"values": flat}
        return quantize(flat.view(len(flat), -1, group_size(rotated.shape[-1], self.group)), self.bits, self.clip)

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        width = self._width(shape.heads, shape.dim)
        size = group_size(width, self.group)
        exact = self.bits == 16
        values = parts["values"].to(shape.wide) if exact else dequantize(parts, self.bits, size, shape.wide)
        rotated = values.reshape(len(values), shape.tokens, -1, width)
        if self.reorder:
            rotated = torch.zeros_like(rotated).scatter_(-1, _order(calibration, rotated), rotated)
        return rotate(rotated, _power(width)).reshape(-1, shape.tokens, shape.heads, shape.dim)

    def _width(self, heads: int, dim: int) -> int:
        """Channels that are rotated and reordered together."""
        return dim * min(_power(heads), 1 << (self.heads.bit_length() - 1))

    def _rotated(self, x: Tensor) -> Tensor:
        """[N, G, groups, width] of x [N, G, K, D]."""
        width = self._width(*x.shape[2:])
        return rotate(x.reshape(*x.shape[:2], -1, width), _power(width))


def _power(count: int) -> int:
    """The largest power of two that divides `count`."""
    return count & -count


def _order(calibration: Parts, like: Tensor) -> Tensor:
    """The order of the channels of each chunk, as an index into `like` [N, G, groups, width]."""
    order = calibration["order"].long().view(-1, 1, *like.shape[2:])
    return order.expand_as(like)
