"""Stores K/V of older tokens in 8 bits with one scale per token and head: nearly lossless, the first to try.

Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference,
https://arxiv.org/abs/1712.05877

    scale = max |x| / 127,  code = round(x / scale)

Deviates from the paper: codes are signed, without a zero point, and scales are those of single tokens.
Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from pardec.models.kv_stores.contracts import ChunkShape, Codec, Layout, Parts, Store
from pardec.models.kv_stores.groups import KIND, checked_scale

from ...registry import register
from .stored_cache import StoredKV


@register("int8", checked="reference:reference.naive_stores.int8")
class Int8(StoredKV):
    residual: Annotated[int, "newest tokens that stay exact"] = 32
    chunk: Annotated[int, "tokens that are encoded together"] = 32
    aligned: Annotated[bool, "end drafts where the next chunk is encoded, so that drafting changes no token"] = True

    def __post_init__(self) -> None:
        self.require("residual", "chunk", least=1)

    @cached_property
    def store(self) -> Store:
        return Store(TokenInt8(), TokenInt8(), self.chunk, self.residual)


@dataclass(frozen=True)
class TokenInt8(Codec):
    """The plain baseline: near-lossless, at half the bytes of bfloat16."""

    def layout(self, shape: ChunkShape) -> Layout:
        heads = (shape.tokens, shape.heads)
        return {"codes": ((*heads, shape.dim), torch.int8), "scale": (heads, KIND)}

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        scale = checked_scale(x.abs().amax(-1, keepdim=True) / 127)
        step = scale.to(x.dtype)
        codes = (x / step.masked_fill(step == 0, 1)).round_().clamp_(-127, 127)
        return {"codes": codes.to(torch.int8), "scale": scale[..., 0]}

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        return parts["codes"] * parts["scale"].to(shape.wide)[..., None]

    def decode_to(self, out: Tensor, parts: Parts, calibration: Parts, shape: ChunkShape) -> None:
        if out.dtype != shape.wide:
            return super().decode_to(out, parts, calibration, shape)
        # In place: memory for all chunks would take longer to get and to copy than the arithmetic.
        out.copy_(parts["codes"]).mul_(parts["scale"].to(out.dtype)[..., None])
