"""Quantization that keeps outliers and approximates the remaining error by a matrix of low rank.

GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM,
https://arxiv.org/abs/2403.05527
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .contracts import ChunkShape, Codec, Layout, Parts
from .groups import KIND, finite


@dataclass(frozen=True)
class LowRankResidual(Codec):
    """X ~ Q(X - S) + L + S for each head of a chunk, X its [G, D].

    S are the entries farthest from the mean of their channel (`by_token`: of their token), a share of them; the mean
    takes their place in what is quantized. L = A B^T is the nearest matrix of rank `rank` to the error.
    """

    base: Codec
    sparsity: float  # share of the entries that are kept exactly
    rank: int
    by_token: bool

    def layout(self, shape: ChunkShape) -> Layout:
        count, rank = self._outliers(shape.tokens, shape.dim), self._rank(shape.tokens, shape.dim)
        return {
            **self.base.layout(shape),
            "where": ((shape.heads, count), torch.int16),
            "outliers": ((shape.heads, count), KIND),
            "a": ((shape.heads, shape.tokens, rank), KIND),
            "b": ((shape.heads, shape.dim, rank), KIND),
        }

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        heads = x.transpose(1, 2)  # [N, K, G, D]
        tokens, dim = heads.shape[2:]
        mean = heads.mean(3 if self.by_token else 2, keepdim=True).expand_as(heads).flatten(2)
        flat = heads.flatten(2)
        where = _largest((flat - mean).abs(), self._outliers(tokens, dim))
        even = flat.scatter(-1, where, mean.gather(-1, where)).view(heads.shape)
        parts = dict(self.base.encode(even.transpose(1, 2), calibration))
        shape = ChunkShape(tokens, x.shape[2], dim, x.dtype)
        quantized = self.base.decode(parts, calibration, shape).to(x.dtype).transpose(1, 2)
        error = (even - quantized).flatten(2).scatter(-1, where, 0).view(heads.shape)
        a, b = low_rank(error, self._rank(tokens, dim))
        outliers = {"where": where.to(torch.int16), "outliers": finite(flat.gather(-1, where).to(KIND))}
        return parts | outliers | {"a": a.to(KIND), "b": b.to(KIND)}

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        base = self.base.decode(parts, calibration, shape).transpose(1, 2)
        whole = base + parts["a"].to(shape.wide) @ parts["b"].to(shape.wide).transpose(2, 3)
        flat = whole.flatten(2).scatter(-1, parts["where"].long(), parts["outliers"].to(shape.wide))
        return flat.view(whole.shape).transpose(1, 2)

    def _outliers(self, tokens: int, dim: int) -> int:
        return round(self.sparsity * tokens * dim)

    def _rank(self, tokens: int, dim: int) -> int:
        return min(self.rank, tokens, dim)


def low_rank(error: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """a [..., G, rank], b [..., D, rank] with a b^T the nearest of that rank to error [..., G, D]."""
    _, vectors = torch.linalg.eigh(error @ error.transpose(-1, -2))  # in ascending order of eigenvalues
    a = vectors[..., error.shape[-2] - rank :]
    return a, error.transpose(-1, -2) @ a


def _largest(x: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of x [..., M], ties go to the first.

    They are compared in bfloat16: tokens that repeat have equal values, which rounding is not to put in an order.
    """
    return x.to(torch.bfloat16).argsort(dim=-1, descending=True, stable=True)[..., :count]
