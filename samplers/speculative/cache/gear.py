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

from pardec.models.kv_stores.contracts import Store
from pardec.models.kv_stores.gear import LowRankResidual
from pardec.models.kv_stores.kivi import PerChannel, PerToken

from ...registry import register
from .stored_cache import StoredKV

_LONGEST = 128  # tokens of a chunk: where an outlier stands fits two bytes, of heads of at most 256 channels


@register("gear", stage="cache", family="ar", paper="arXiv:2403.05527", checked="reference:reference.naive_stores.gear")
@dataclass(frozen=True)
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
        values = LowRankResidual(PerToken(self.bits, self.chunk * 64), self.sparsity, self.rank, by_token=True)
        return Store(keys, values, self.chunk, self.residual)
