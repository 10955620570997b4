"""What a store does with the keys, or the values, of a chunk of tokens in one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # the shape of each part without rows, and its dtype


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The keys, or the values, of one layer in a chunk: [tokens, heads, dim] of `dtype`."""

    tokens: int  # G
    heads: int  # K
    dim: int  # D
    dtype: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        """What it is computed in: float32, or wider."""
        return torch.promote_types(self.dtype, torch.float32)


class Codec:
    """Encodes chunks [N, G, K, D] to parts, in which chunks are dimension 0, and decodes them again.

    No chunk depends on another, but for the calibration of its row, which is made once, from the first that come.
    """

    def layout(self, shape: ChunkShape) -> Layout:
        """The parts of a chunk."""
        raise NotImplementedError

    def calibration_layout(self, shape: ChunkShape) -> Layout:
        """The parts that all chunks of a row have in common."""
        return {}

    def calibrate(self, first: Tensor) -> Parts:
        """Those of one row, from its first chunks [N, G, K, D]."""
        return {}

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        """The parts of chunks x [N, G, K, D], float32 or float64; `calibration` is of the row of each, [N, ...]."""
        raise NotImplementedError

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        """[N, G, K, D], of `shape.wide`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Exact(Codec):
    """Keeps a chunk as it is."""

    def layout(self, shape: ChunkShape) -> Layout:
        return {"values": ((shape.tokens, shape.heads, shape.dim), shape.dtype)}

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        return {"values": x}

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        return parts["values"].to(shape.wide)


@dataclass(frozen=True)
class Store:
    """How a row's slots are kept: the first and the newest as they are, those between them as chunks.

    Slots below `settled(length)` are chunks, `length` being the row's committed tokens.
    """

    keys: Codec
    values: Codec
    chunk: int  # G, tokens that are encoded together
    residual: int  # R, the newest tokens that stay exact, at least 1: the last committed token's K/V are not there yet
    sinks: int = 0  # first tokens that stay exact
    before_rotation: bool = False  # keys are encoded as they are before the rotary embedding

    def settled(self, length: int) -> int:
        """Slots of the row that are no longer exact, the sinks included; 0 until a chunk is full."""
        chunks = (length - self.residual - self.sinks) // self.chunk
        return self.sinks + chunks * self.chunk if chunks > 0 else 0

    def room(self, length: int) -> int:
        """Tokens that can be drafted after `length` before the next chunk is encoded: sequential decoding, which
        would encode it between them, reads what a whole draft reads."""
        chunks = max(0, (length - self.residual - self.sinks) // self.chunk)
        return self.residual + self.sinks + (chunks + 1) * self.chunk - length - 1

    def chunks(self, capacity: int) -> int:
        """The most chunks of a row of `capacity` slots."""
        return max(0, (capacity - self.residual - self.sinks) // self.chunk)

    def exact_slots(self, scratch: int) -> int:
        """The most slots that are exact at once: sinks and residual, a chunk that is not full, `scratch` of a draft."""
        return self.sinks + self.residual + self.chunk + scratch


def layout_bytes(layout: Layout) -> int:
    """Bytes of the parts of one chunk."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in layout.values())
