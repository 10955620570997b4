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

import torch
from torch import Tensor

from pardec.models.kv_stores.contracts import ChunkShape, Codec, Layout, Parts, Store

from ...registry import register
from .stored_cache import StoredKV


@register("mustafar", checked="reference:reference.naive_stores.pruned")
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


_BIT = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


@dataclass(frozen=True)
class Pruned(Codec):
    """Keeps the D - int(sparsity D) largest entries by magnitude of each token and head; ties go to the first."""

    sparsity: float

    def layout(self, shape: ChunkShape) -> Layout:
        heads = (shape.tokens, shape.heads)
        return {
            "bitmap": ((*heads, -(-shape.dim // 8)), torch.uint8),
            "values": ((*heads, self.count(shape.dim)), shape.dtype),
        }

    def count(self, dim: int) -> int:
        """The number of entries kept in a head of `dim`."""
        return dim - int(self.sparsity * dim)

    def encode(self, x: Tensor, calibration: Parts) -> Parts:
        count = self.count(x.shape[-1])
        where = x.abs().argsort(dim=-1, descending=True, stable=True)[..., :count].sort(-1).values
        stays = torch.zeros(x.shape, dtype=torch.uint8, device=x.device).scatter_(-1, where, 1)
        bits = torch.nn.functional.pad(stays, (0, -x.shape[-1] % 8))
        bits = bits.view(*bits.shape[:-1], -1, 8)
        return {"bitmap": (bits * _BIT.to(x.device)).sum(-1, dtype=torch.uint8), "values": x.gather(-1, where)}

    def decode(self, parts: Parts, calibration: Parts, shape: ChunkShape) -> Tensor:
        bitmap, values = parts["bitmap"], parts["values"]
        stays = ((bitmap[..., None] & _BIT.to(bitmap.device)) != 0).flatten(-2)[..., : shape.dim]
        count = values.shape[-1]
        rank = stays.cumsum(-1)  # a chunk that was never written has no bits, and a rank of 0
        return values.to(shape.wide).gather(-1, (rank - 1).clamp_(0, count - 1)) * stays
