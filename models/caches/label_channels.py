"""Attention to the slots whose keys agree best with a query in a few label channels.

Post-Training Sparse Attention with Double Sparsity, https://arxiv.org/abs/2408.07092

    importance[d] = mean over calibration tokens, and over the query heads of a head of keys, of |q_d k_d|
    labels = the pairs (d, d + D/2) of the highest importance[d] + importance[d + D/2]
    query i of head h sees the `heavy` slots of the highest  q[labels] . k[labels], the first `sink` ones, the last
    `window` ones, and itself: the attention over them is exact

q and k are compared after RoPE, which rotates the two channels of a pair into each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..errors import ModelError
from ..kernels.attention import AttentionPattern, additive_mask, visible_rows
from ..model import LanguageModel
from ..plan import Plan
from .kv_cache import KVCache, Reader

FILE = "label_channels.json"  # in a checkpoint's folder: pairs of channels per layer and key head, most important first


def importance(q: Tensor, k: Tensor) -> Tensor:
    """[..., K, D/2]: importance of channel pairs, for queries [..., n, H, D] and keys [..., n, K, D] of tokens."""
    grouped = rearrange(q, "... n (k g) d -> ... n k g d", k=k.shape[-2])
    each = (grouped.float() * k.float()[..., None, :]).abs().mean((-4, -2))
    first, second = each.chunk(2, -1)
    return first + second


def calibrate(model: LanguageModel, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """[K, D/2] per layer: the pairs of channels, most important first, over all tokens of `texts`.

    Raises ModelError for no text.
    """
    if not any(texts):
        raise ModelError("calibration needs at least one text", "give some hundred tokens of ordinary text")
    sums: list[Tensor] = []
    for text in texts:
        if not text:
            continue
        size = len(text)
        cache = model.new_cache(1, size, captured=False)
        tokens = torch.tensor([text], device=model.device)
        order = torch.arange(size, device=model.device)[None]
        lengths = torch.tensor([size], device=model.device)
        causal = model.visible()
        plan = Plan(tokens, order, order, causal, lengths, order, uniform=size, span=(0, size), queries=size)
        queries = model.run(plan, cache).queries
        each = [importance(q[0], k[0, :size]) * size for q, k in zip(queries, cache.k, strict=True)]
        sums = each if not sums else [a + b for a, b in zip(sums, each, strict=True)]
    return [total.argsort(dim=-1, descending=True, stable=True) for total in sums]


def write_labels(folder: Path, ranking: Sequence[Tensor]) -> Path:
    """Writes the result of `calibrate` into a checkpoint's folder."""
    file = folder / FILE
    file.write_text(json.dumps([layer.tolist() for layer in ranking]))
    return file


def read_labels(file: Path, model: LanguageModel, pairs: int) -> list[Tensor]:
    """[K, pairs] per layer, read from a file of `write_labels`. Raises ModelError where it is not this model's."""
    try:
        ranking = [torch.tensor(layer) for layer in json.loads(file.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"{file} lists no label channels: {error}", "write the file with models.caches.label_channels.write_labels"
        ) from None
    cache = model.new_cache(1, 1)
    shapes = [(k.shape[2], k.shape[3] // 2) for k in cache.k]
    fits = [tuple(layer.shape) for layer in ranking] == shapes
    if not fits or any(
        layer.is_floating_point() or layer.min() < 0 or layer.max() >= layer.shape[1] for layer in ranking
    ):
        raise ModelError(
            f"{file} does not match the layers and heads of {model.name}",
            "calibrate this model: models.caches.label_channels",
        )
    return [layer[:, :pairs] for layer in ranking]


class LabelCache(KVCache):
    """A cache whose queries attend to few slots once `labels` are set: pairs of channels [B, K, P], per layer."""

    by_row: ClassVar[tuple[str, ...]] = ("labels",)

    def __init__(self, plain: KVCache, *, heavy: int, sink: int, window: int) -> None:
        """Takes the storage of `plain`. Where rows share slots, everything is read."""
        self.share(plain)
        self.heavy, self.sink, self.window = heavy, sink, window
        self.labels: list[Tensor] | None = None

    def reader(self, plan: Plan, rope: Any, device: torch.device) -> Reader | None:
        most = self.heavy + self.sink + self.window
        if self.labels is None or self.shared is not None or self.extent(plan) <= most:
            return None  # queries see all slots: the kernels run
        labels = self.labels if plan.rows is None else [each[plan.rows.to(each.device)] for each in self.labels]
        positions, slots = plan.positions.to(device), plan.slots.to(device)
        text = torch.arange(self.capacity + 1, device=device).repeat(len(positions), 1)
        places = text.scatter(1, slots.masked_fill(slots < 0, self.capacity), positions)
        return LabelReader(labels, self.heavy, self.sink, self.window, positions, places)

    def share(self, plain: KVCache) -> None:
        """Uses the present key and value tensors of `plain` as this cache's own."""
        vars(self).update(vars(plain))


@dataclass(frozen=True, slots=True)
class LabelReader(Reader):
    """Attends by the definition: each query to its heaviest slots."""

    labels: Sequence[Tensor]  # per layer [B, K, P]
    heavy: int
    sink: int
    window: int
    positions: Tensor  # [B, Q] positions of the queries
    places: Tensor  # [B, >= S] positions of the tokens in the slots; those of a tree's nodes are not their slots

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        k, v = visible_rows(k, pattern), visible_rows(v, pattern)
        queries, extent = q.shape[1], k.shape[1]
        mask = additive_mask(pattern, queries, extent, q.dtype, q.device)
        order = torch.arange(extent, device=q.device)
        near = self.places[:, None, :extent] > self.positions[..., None] - self.window
        near |= order < self.sink
        read = heaviest(q, k, self.labels[layer].to(q.device), self.heavy, None if mask is None else mask == 0, near)
        return attend_visible(q, k, v, read)

    def narrowed(self, picked: Tensor) -> Reader:
        """The reader for the queries `picked` [B, M] alone."""
        rows = torch.arange(len(picked), device=picked.device)[:, None]
        return replace(self, positions=self.positions[rows, picked])


def heaviest(q: Tensor, k: Tensor, labels: Tensor, heavy: int, visible: Tensor | None, near: Tensor) -> Tensor:
    """[B, H, Q, S] bool: the slots that each query sees, those `near` and the `heavy` best others by its labels.

    Args:
        q: [B, Q, H, D].
        k: [B, S, K, D].
        labels: [B, K, P] pairs of channels.
        heavy: how many.
        visible: [B or 1, 1, Q, S] bool, what may be seen; None is everything.
        near: [B, Q, S] bool, what is seen in any case, if it may be.
    """
    kv, half = k.shape[2], k.shape[3] // 2
    channels = torch.cat((labels, labels + half), -1)[:, None]  # [B, 1, K, C]
    keys = k.gather(3, channels.expand(-1, k.shape[1], -1, -1))
    grouped = rearrange(q, "b q (k g) d -> b q k g d", k=kv)
    channels = channels[:, :, :, None].expand(-1, q.shape[1], -1, grouped.shape[3], -1)
    raw = torch.einsum("bqkgc,bskc->bkgqs", grouped.gather(4, channels), keys)
    scores = rearrange(raw, "b k g q s -> b (k g) q s").float()
    near = near[:, None]
    left_out = near if visible is None else near | ~visible
    best = scores.masked_fill(left_out, -torch.inf).topk(min(heavy, scores.shape[-1]), -1)
    read = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best.indices, best.values > -torch.inf)
    return read | (near if visible is None else near & visible)


def attend_visible(q: Tensor, k: Tensor, v: Tensor, read: Tensor) -> Tensor:
    """Attention of q [B, Q, H, D] over the slots of k, v [B, S, K, D] that it sees, [B, H, Q, S] bool -> as q."""
    grouped = q.shape[2] != k.shape[2]
    # A masked weight is 0, but 0 * NaN is NaN: slots that no query of a key head sees are set to 0.
    dead = rearrange(~read, "b (k g) q s -> b s k (g q)", k=k.shape[2]).all(-1, keepdim=True)
    added = torch.zeros(read.shape, dtype=q.dtype, device=q.device).masked_fill_(~read, -torch.inf)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.masked_fill(dead, 0).transpose(1, 2),
        v.masked_fill(dead, 0).transpose(1, 2),
        attn_mask=added,
        enable_gqa=grouped,
    )
    return out.transpose(1, 2)
