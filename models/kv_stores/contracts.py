"""Stores and codecs: how the keys or values of a chunk of tokens in one layer are encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # name -> shape of the part without rows, and dtype


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The keys, or the values, of one layer in a chunk: [tokens, heads, dim] of `dtype`."""

    tokens: int  # G
    heads: int  # K
    dim: int  # D
    dtype: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        """The dtype of its arithmetic: float32, or wider."""
        return torch.promote_types(self.dtype, torch.float32)


class Codec:
    """Encodes chunks [N, G, K, D] to parts, in which chunks are dimension 0, and decodes them again.

    No chunk depends on another, but for the calibration of its row, which is made once, from the first that come.
    """

    def layout(self, shape: ChunkShape) -> Layout:
        """The parts of a chunk."""
        raise NotImplementedError

    def calibration_layout(self, shape: ChunkShape) -> Layout:
        """The parts that all chunks of a row share."""
        return {}

    def calibrate(self, first: Tensor) -> Parts:
        """The shared parts of one row, from its first chunks [N, G, K, D]."""
        return {}

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        """The parts of chunks x [N, G, K, D], float32 or float64; `calibration` [N, ...] is of each chunk's row."""
        raise NotImplementedError

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        """The chunks [N, G, K, D], in dtype `shape.wide`."""
        raise NotImplementedError

    def decode_to(self, out: Tensor, parts: Parts, calibration: Parts, shape: ChunkShape) -> None:
        """Writes the chunks to out [R, N, G, K, D], of any dtype; parts [R, N, ...], and calibration [R, ...]."""
        flat = {name: part.flatten(0, 1) for name, part in parts.items()}
        each = {name: part.repeat_interleave(out.shape[1], 0) for name, part in calibration.items()}
        out.copy_(self.decode(flat, each, shape).reshape(out.shape))


@dataclass(frozen=True)
class Exact(Codec):
    """Stores a chunk of keys or values unchanged."""

    def layout(self, shape: ChunkShape) -> Layout:
        return {"values": ((shape.tokens, shape.heads, shape.dim), shape.dtype)}

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        return {"values": x}

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        return parts["values"].to(shape.wide)


@dataclass(frozen=True)
class Store:
    """The scheme by which a row's slots are stored: the first and the newest exact, the others as encoded chunks.

    Slots below `settled(length)` are chunks, `length` being the row's committed tokens.
    """

    keys: Codec
    values: Codec
    chunk: int  # G, tokens that are encoded together
    residual: int  # R, the newest tokens that stay exact, at least 1: the last committed token's K/V are not there yet
    sinks: int = 0  # first tokens that stay exact
    before_rotation: bool = False  # whether keys are encoded before the rotary embedding

    def settled(self, length: int) -> int:
        """Number of a row's slots before the newest exact ones, sinks included; 0 until a chunk is full."""
        chunks = (length - self.residual - self.sinks) // self.chunk
        return self.sinks + chunks * self.chunk if chunks > 0 else 0

    def room(self, length: int) -> int:
        """The number of tokens that can be drafted after `length` before the next chunk is encoded."""
        chunks = max(0, (length - self.residual - self.sinks) // self.chunk)
        return self.residual + self.sinks + (chunks + 1) * self.chunk - length - 1

    def chunks(self, capacity: int) -> int:
        """The maximum number of chunks in a row of `capacity` slots."""
        return max(0, (capacity - self.residual - self.sinks) // self.chunk)

    def exact_slots(self, scratch: int) -> int:
        """The maximum of exact slots: sinks, residual, a chunk that is not full, and `scratch` slots of a draft."""
        return self.sinks + self.residual + self.chunk + scratch


def layout_bytes(layout: Layout) -> int:
    """Bytes of the parts of one chunk."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in layout.values())
