"""Attends to the first tokens of a text and its last ones.

Efficient Streaming Language Models with Attention Sinks, https://arxiv.org/abs/2309.17453

    a query at position p sees slot s  iff  s < sink  or  s > p - window

What no later query sees is overwritten, so that a row takes the memory of sink + window tokens and a draft's nodes.

Deviates from the paper: keys keep their absolute positions, so that a text may be as long as the model allows. The
paper numbers the slots of the cache anew at every step; `lminfinite` is for texts beyond the trained length.
Exact: no; while a text has at most sink + window tokens, nothing is left out.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from pardec.models.caches.kv_cache import KVCache
from pardec.models.caches.window_cache import WindowCache
from pardec.models.caches.window_readers import Far
from pardec.models.cuda_graphs.runner import native
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...registry import register
from ..contracts import DecodeContext
from ..sparse_kv import Choice, CommittedSlots, SparseAttention


@register("streaming", checked="reference:reference.naive_window.naive")
class Streaming(SparseAttention):
    sink: Annotated[int, "first tokens that are always seen"] = 16
    window: Annotated[int, "last tokens that are seen"] = 496

    def __post_init__(self) -> None:
        self.require("sink", least=0)
        self.require("window", least=1)

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        return window_cache(model, rows, capacity + scratch, nodes=scratch + 1, sink=self.sink, window=self.window)

    def start(self, context: DecodeContext) -> None:
        return None

    def settle(self, context: DecodeContext, state: Any) -> None:
        return

    @property
    def most(self) -> int:
        return self.sink + self.window

    def choose(self, slots: CommittedSlots) -> Choice:
        first = np.maximum(np.minimum(self.sink, slots.length), slots.length - self.window)
        order = torch.arange(self.sink).repeat(len(first), 1)
        sinks = torch.where(order < torch.from_numpy(first)[:, None], order, -1)[..., None]
        counts = np.minimum(self.sink, first)
        whole = [upload(sinks, k.device).expand(-1, -1, k.shape[2]) for k in slots.cache.k]
        return Choice(whole, first, np.tile(counts, (slots.layers, 1)))


def window_cache(
    model: LanguageModel, rows: int, reach: int, *, nodes: int, sink: int, window: int, far: Far | None = None
) -> WindowCache:
    """An empty cache for texts of up to `reach` slots; a forward after the prompt feeds at most `nodes` nodes."""
    plain = (native(model.decoder) or model.decoder).new_cache(rows, sink + window + nodes - 1)
    return WindowCache(plain, sink=sink, window=window, nodes=nodes, reach=reach, far=far)
