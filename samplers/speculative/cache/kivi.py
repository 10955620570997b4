"""Stores older keys in few bits per channel and group of tokens, values per token and group of channels.

KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache, https://arxiv.org/abs/2402.02750

    scale = (max - min) / (2^bits - 1),  code = round((x - min) / scale)

Keys have channels of outliers, and values have none: so a key's group is one channel in `group` tokens, and a value's
`group` channels of one token and head, or as many as divide the head.

Deviates from the authors' code: values leave the residual with their keys, a group of tokens at a time, and not one by
one. A group of equal numbers has code 0 where the published division by its scale gives NaN. The minimum is rounded
down and the scale up, so that no error exceeds half a scale. `bits=16` keeps what left the residual as it is.
Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from torch import Tensor

from pardec.models.kv_stores.contracts import ChunkShape, Codec, Exact, Layout, Parts, Store
from pardec.models.kv_stores.groups import dequantize, group_layout, group_size, quantize

from ...registry import register
from .stored_cache import StoredKV


@register("kivi", checked="reference:reference.naive_stores.by_channel reference:reference.naive_stores.by_token")
class Kivi(StoredKV):
    bits: Annotated[int, "bits per code: 2, 3, 4 or 8; 16 stores K/V unchanged"] = 4
    group: Annotated[int, "tokens per group of keys, which are encoded together, and channels per group of values"] = 32
    residual: Annotated[int, "newest tokens that stay exact"] = 128
    aligned: Annotated[bool, "end drafts where the next chunk is encoded, so that drafting changes no token"] = True

    def __post_init__(self) -> None:
        self.require("group", "residual", least=1)
        self.require_bits(self.bits)

    @cached_property
    def store(self) -> Store:
        if self.bits == 16:
            return Store(Exact(), Exact(), self.group, self.residual)
        return Store(PerChannel(self.bits), PerToken(self.bits, self.group), self.group, self.residual)


@dataclass(frozen=True)
class PerChannel(Codec):
    """A group is one channel of one head in all tokens of the chunk."""

    bits: int

    def layout(self, shape: ChunkShape) -> Layout:
        channels = shape.heads * shape.dim
        return group_layout(channels * shape.tokens, channels, self.bits)

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        return quantize(x.flatten(2).transpose(1, 2), self.bits)

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        channels = dequantize(parts, self.bits, shape.tokens, shape.wide)
        return channels.transpose(1, 2).reshape(-1, shape.tokens, shape.heads, shape.dim)


@dataclass(frozen=True)
class PerToken(Codec):
    """A group is at most `group` neighbouring channels of one head in one token, as many as divide the head."""

    bits: int
    group: int

    def layout(self, shape: ChunkShape) -> Layout:
        count = shape.tokens * shape.heads * shape.dim
        return group_layout(count, count // group_size(shape.dim, self.group), self.bits)

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        return quantize(x.reshape(len(x), -1, group_size(x.shape[-1], self.group)), self.bits)

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        values = dequantize(parts, self.bits, group_size(shape.dim, self.group), shape.wide)
        return values.view(-1, shape.tokens, shape.heads, shape.dim)
