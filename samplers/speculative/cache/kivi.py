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

from pardec.models.kv_stores.contracts import Exact, Store
from pardec.models.kv_stores.kivi import PerChannel, PerToken

from ...registry import register
from .stored_cache import StoredKV


@register(
    "kivi",
    stage="cache",
    family="ar",
    paper="arXiv:2402.02750",
    checked="reference:reference.naive_stores.by_channel reference:reference.naive_stores.by_token",
)
@dataclass(frozen=True)
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
