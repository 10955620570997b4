"""Keys per channel over the tokens of a chunk, values per token over groups of channels.

KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache, https://arxiv.org/abs/2402.02750
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .contracts import ChunkShape, Codec, Layout, Parts
from .groups import dequantize, group_layout, group_size, quantize


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
