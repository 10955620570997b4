"""Attends, for each query, to the slots whose keys match it best in a few label channels.

Post-Training Sparse Attention with Double Sparsity, https://arxiv.org/abs/2408.07092

    labels: the pairs of channels with the highest mean |q_d k_d|, q and k of one token after RoPE, by layer and head
    seen: the `heavy` slots of the highest  q[labels] . k[labels],  for each query and head,
    the first `sink` tokens and the last `window` ones;  attention over them is exact

Labels come from `label_channels.json` beside the checkpoint or from `file`, which `calibrate` and `write_labels` of
`models.caches.label_channels` make; without them each row's come from the last `calibration` tokens of its prompt.
Prompts are fed densely. All keys and values stay in memory, and only PyTorch's attention leaves slots out: what
is saved is what a kernel for it would not read.

Deviates from the authors' code, whose channels are single ones, whose top slots alone are seen, and whose labels may be
of 4 bits: pairs, which RoPE rotates into each other, and a sink and a window.
Exact: no; while a text has at most heavy + sink + window tokens, nothing is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.caches.label_channels import FILE, LabelCache, importance, read_labels
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import DecodeContext
from ..sparse_kv import LETS_GO, READS_PART, PerQueryAttention


@register("channels", checked="reference:samplers.speculative.test_channels.naive")
class Channels(PerQueryAttention):
    heavy: Annotated[int, "tokens that each query attends to because their labels match best"] = 256
    sink: Annotated[int, "first tokens that are always seen"] = 4
    window: Annotated[int, "last tokens that are always seen"] = 64
    pairs: Annotated[int | None, "pairs of channels that are labels; by default a sixteenth of all, at least one"] = (
        None
    )
    calibration: Annotated[int, "last prompt tokens that rank the channels if there is no file"] = 64
    file: Annotated[str | None, "file that lists the pairs; default: label_channels.json beside the checkpoint"] = None

    def __post_init__(self) -> None:
        self.require("heavy", "window", "calibration", "pairs", least=1)
        self.require("sink", least=0)

    requires: ClassVar[Reasons] = {Trait.PLAIN_DECODER: READS_PART}
    conflicts: ClassVar[Reasons] = {Trait.FEEDS_TEXT_AGAIN: LETS_GO}

    @property
    def last_queries(self) -> int:
        return self.calibration

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        return self.view(model, model.new_cache(rows, capacity, scratch=scratch, captured=False))

    def view(self, model: LanguageModel, cache: KVCache) -> LabelCache:
        least = min(k.shape[3] for k in cache.k) // 2
        if self.pairs is not None and self.pairs > least:
            raise ModelError(
                f"channels: {model.name} has {least} pairs of channels, got pairs={self.pairs}", "use fewer pairs"
            )
        self._of_file(model, cache)  # an error comes before the prompt is fed
        return LabelCache(cache, heavy=self.heavy, sink=self.sink, window=self.window)

    def settle(self, context: DecodeContext, state: Any) -> None:
        assert isinstance(context.cache, LabelCache), "new_cache made it"
        self.calibrate(context.cache, context)

    def calibrate(self, view: LabelCache, context: DecodeContext) -> None:
        if view.labels is not None or view.shared is not None:
            return
        view.labels = self._of_file(context.model, view)
        if view.labels is None:
            each = zip(context.queries(), view.k, strict=True)
            view.labels = [self._ranked(q, k, context.text.prompt)[..., : self._pairs(view)] for q, k in each]

    def _ranked(self, q: Tensor, k: Tensor, prompt: np.ndarray) -> Tensor:
        """[B, K, D/2]: channel pairs, most important first, for queries q [B, n, H, D] of the prompts' last tokens."""
        last = upload(prompt, k.device)[:, None]
        where = last - q.shape[1] + torch.arange(q.shape[1], device=k.device)
        keys = k[torch.arange(len(where), device=k.device)[:, None], where.clamp(min=0)]
        keys = keys.masked_fill((where < 0)[..., None, None], 0)  # a prompt with fewer tokens repeats its first query
        return importance(q, keys).argsort(dim=-1, descending=True, stable=True)

    def _pairs(self, cache: KVCache) -> int:
        return self.pairs or max(1, min(k.shape[3] for k in cache.k) // 32)

    def _of_file(self, model: LanguageModel, cache: KVCache) -> list[Tensor] | None:
        """The channels in the file, [B, K, P] per layer, the same in all rows; None without a file."""
        file = None if model.path is None else Path(model.path) / FILE
        if self.file is not None:
            file = Path(self.file)
        elif file is None or not file.is_file():
            return None
        each = zip(read_labels(file, model, self._pairs(cache)), cache.k, strict=True)
        return [labels.to(k.device).repeat(cache.batch, 1, 1) for labels, k in each]
