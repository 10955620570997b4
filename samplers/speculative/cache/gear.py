"""Stores older K/V in few bits, with outliers kept exactly and the remaining error approximated at low rank.

GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM,
https://arxiv.org/abs/2403.05527

    X ~ Q(X - S) + L + S

of each head in a chunk: S the outliers, a share `sparsity` of the entries, in whose place the mean is quantized; L of
rank `rank`, nearest to X - S - Q(X - S). Q is per channel for keys and per token for values.

Deviates from the authors' code: a chunk's outliers are the entries farthest from the mean of their channel (keys) or
token (values), of all its channels together: two per cent of a channel of 20 tokens are less than one. The error is
measured without them. L is the nearest matrix of its rank, where theirs comes from a few power iterations with a random
start. Levels are 2^bits, theirs bits^2. A prompt is compressed chunk by chunk, as the answer is.
Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from pardec.models.kv_stores.contracts import ChunkShape, Codec, Layout, Parts, Store
from pardec.models.kv_stores.groups import KIND, finite

from ...registry import register
from .kivi import PerChannel, PerToken
from .stored_cache import StoredKV

_LONGEST = 128  # tokens of a chunk at most: an outlier's index in a head of up to 512 channels fits two bytes
_WIDEST = 512  # channels of a token that are quantized together


@register("gear", checked="reference:reference.naive_stores.gear")
class Gear(StoredKV):
    bits: Annotated[int, "bits per code: 2, 3, 4 or 8"] = 2
    rank: Annotated[int, "rank of the error's approximation, per head and chunk"] = 4
    sparsity: Annotated[float, "share of the entries (outliers) that are stored exactly"] = 0.02
    chunk: Annotated[int, "tokens that are compressed together"] = 20
    residual: Annotated[int, "newest tokens that stay exact, in addition to an incomplete chunk"] = 1
    aligned: Annotated[bool, "end drafts where the next chunk is encoded, so that drafting changes no token"] = True

    def __post_init__(self) -> None:
        self.require("rank", least=0)
        self.require("residual", least=1)
        self.require("chunk", least=1, most=_LONGEST)
        self.require("sparsity", least=0, most=0.5)
        self.require_bits(self.bits)
        self.require("bits", most=8)

    @cached_property
    def store(self) -> Store:
        keys = LowRankResidual(PerChannel(self.bits), self.sparsity, self.rank, by_token=False)
        values = LowRankResidual(PerToken(self.bits, _WIDEST), self.sparsity, self.rank, by_token=True)
        return Store(keys, values, self.chunk, self.residual)


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
        where = parts["where"].long() & 0xFFFF  # stored without a sign
        flat = whole.flatten(2).scatter(-1, where, parts["outliers"].to(shape.wide))
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
