"""Stores the largest entries of older K/V per token and head, with a bitmap of their places.

Mustafar: Promoting Unstructured Sparsity for KV Cache Pruning in LLM Inference, https://arxiv.org/abs/2505.22913

    keep the D - int(sparsity D) entries of the largest |x| of each token's head;  the others are read as 0

A head takes D / 8 bytes of bitmap, and what is kept in the model's dtype. The newest tokens stay dense.

Deviates from the authors' code: of entries equal to the threshold only as many stay as make the number right, while
theirs keep one more, and all equal ones.
Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pardec.models.kv_stores.contracts import Store
from pardec.models.kv_stores.mustafar import Pruned

from ...registry import register
from .stored_cache import StoredKV


@register(
    "mustafar", stage="cache", family="ar", paper="arXiv:2505.22913", checked="reference:reference.naive_stores.pruned"
)
@dataclass(frozen=True)
class Mustafar(StoredKV):
    sparsity: Annotated[float, "share of a head's entries that are dropped"] = 0.5
    residual: Annotated[int, "newest tokens that stay dense"] = 32
    chunk: Annotated[int, "tokens that are encoded together"] = 32
    aligned: Annotated[bool, "end drafts where the next chunk is encoded, so that drafting changes no token"] = True

    def __post_init__(self) -> None:
        self.require("residual", "chunk", least=1)
        self.require("sparsity", least=0, most=0.95)

    @cached_property
    def store(self) -> Store:
        return Store(Pruned(self.sparsity), Pruned(self.sparsity), self.chunk, self.residual)
