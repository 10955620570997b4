"""Attends to the chunks of a text whose keys match the last query best.

TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative Decoding,
https://arxiv.org/abs/2404.11912

    score(chunk) = softmax over chunks of  q . mean(k of the chunk) / sqrt(D),  q the query of the last token, averaged
    over the query heads that share a head of keys
    seen: chunk 0, the best budget / chunk - 1 others, and all tokens after the last whole chunk

Every layer and head of keys has chunks of its own. They are chosen anew every `refresh` rounds.

Deviates from the authors' code, where new tokens overwrite the last chunks chosen, chunks are chosen once, and all
heads have keys of their own: new tokens have room of their own, and the last chunk need not be whole.
Exact: no; while a text has at most `budget` tokens, nothing is left out.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from einops import reduce
from torch import Tensor

from pardec.models.caches.compact_cache import text_keys

from ...host_transfer import upload
from ...registry import register
from ..sparse_kv import Choice, CommittedSlots, SparseAttention


@register("retrieval", checked="reference:samplers.speculative.test_retrieval.naive_chunks")
class Retrieval(SparseAttention):
    budget: Annotated[int, "tokens in the chunks that are attended to"] = 512
    chunk: Annotated[int, "tokens per chunk"] = 8
    refresh: Annotated[int, "rounds after which chunks are chosen anew"] = 8

    def __post_init__(self) -> None:
        self.require("chunk", "refresh", least=1)
        self.require("budget", least=self.chunk)

    @property
    def most(self) -> int:
        return self.budget + self.chunk

    @property
    def last_queries(self) -> int:
        return 1

    def choose(self, slots: CommittedSlots) -> Choice:
        counts = slots.length // self.chunk
        rows, most = torch.from_numpy(slots.rows), int(counts.max(initial=0))
        number = min(self.budget // self.chunk, most)
        chosen = []
        for layer, q in enumerate(slots.queries):
            keys = text_keys(slots.cache, layer, rows, most * self.chunk)
            many = upload(counts, keys.device)[:, None, None]
            means = reduce(keys, "b (n c) k d -> b n k d", "mean", c=self.chunk)
            scores = chunk_scores(q[:, -1], means, many)
            scores[:, :1] = torch.inf
            best = scores.topk(number, 1).indices
            best = torch.where(best < many, best, most).sort(1).values  # in order of the text
            order = torch.arange(self.chunk, device=best.device)
            picked = (best[:, :, None] * self.chunk + order[:, None]).flatten(1, 2)
            chosen.append(torch.where(picked < many * self.chunk, picked, -1))
        whole = np.minimum(number, counts) * self.chunk
        return Choice(chosen, counts * self.chunk, np.tile(whole, (slots.layers, 1)))


def chunk_scores(q: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """[B, N, K]: the share of the attention of q [B, H, D] that each of the first `counts` [B, 1, 1] chunks attracts.

    `means` [B, N, K, D] are the chunks' mean keys, NaN or not after `counts`.
    """
    batch, chunks, heads, dim = means.shape
    grouped = q.view(batch, heads, -1, dim)
    raw = torch.einsum("bkgd,bnkd->bnkg", grouped, means).float() / dim**0.5
    behind = torch.arange(chunks, device=raw.device)[:, None] >= counts
    raw = raw.masked_fill(behind[..., None], -torch.inf)
    shares: Tensor = raw.softmax(1).mean(-1).masked_fill(behind, -1)
    return shares
