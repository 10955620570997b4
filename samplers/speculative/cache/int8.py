"""K/V of older tokens in 8 bits, one scale for each token and head: near-lossless, and the first to try.

LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale, https://arxiv.org/abs/2208.07339 (vector-wise codes)

    scale = max |x| / 127,  code = round(x / scale)

Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pardec.models.kv_stores.contracts import Store
from pardec.models.kv_stores.int8 import TokenInt8

from ...registry import register
from ._stored import StoredKV


@register("int8", stage="cache", family="ar", paper="arXiv:2208.07339", checked="reference")
@dataclass(frozen=True)
class Int8(StoredKV):
    residual: Annotated[int, "newest tokens that stay exact"] = 32
    chunk: Annotated[int, "tokens that leave the residual together"] = 32
    aligned: Annotated[bool, "drafts end where a chunk is encoded, so that they change no token"] = True

    def __post_init__(self) -> None:
        self.require("residual", "chunk", least=1)

    @cached_property
    def store(self) -> Store:
        return Store(TokenInt8(), TokenInt8(), self.chunk, self.residual)
