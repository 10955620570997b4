"""Signed codes of 8 bits with one scale for each token and head: scale = max |x| / 127, code = round(x / scale)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .contracts import ChunkShape, Codec, Layout, Parts
from .groups import KIND, checked_scale


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
