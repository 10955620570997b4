"""Greedy chains of an EAGLE of one layer as one call of the kernels in C, where these support it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..decoder import Decoder
from ..kernels.cpu.layers import PairsInC, PairWeights, usable
from .few_pairs import MOST


def chains(module: Any, cache: KVCache) -> bool:
    """Whether a `PairChain` can draft with `module`, an `EagleModule` and no subclass, over `cache`."""
    decoder = module.target.decoder
    if module.later or module.form.gated or module.fusion is not None or module.own is not None:
        return False
    if type(decoder) is not Decoder or decoder.placement is not None or decoder.config.logit_cap is not None:
        return False
    return type(cache) is KVCache and cache.shared is None and cache.shift is None


class PairChain:
    """Greedy chains of a single row by an `EagleModule` over its cache, as one call of the kernels in C."""

    def __init__(self, module: Any, cache: KVCache) -> None:
        self.module, self.cache = module, cache
        self._known: tuple[Any, ...] = ()  # the weights and the cache's memory, by which `_run` was made
        self._run: PairsInC | None = None

    def draft(self, tokens: Tensor, states: Tensor, start: int, count: int) -> tuple[Tensor, Tensor] | None:
        """Returns `tokens` [W] followed by `count` drafted ones, and the sum of the logits, bit-identical to `run`.

        `states` [W, E] are those before the tokens, whose pairs take the slots from `start` on. None where `run` has
        to do it: for a text's first pairs, many of them, and where the kernels do not take all weights.
        """
        module, cache, stop = self.module, self.cache, start + len(tokens) + count - 1
        if start < 1 or len(tokens) > MOST or stop > cache.capacity or cache.batch != 1:
            return None
        if not states.dtype == cache.k[0].dtype == torch.float32 or not usable(states.device, states.dtype):
            return None
        if self._changed():
            layer, weights = module.first.in_c, self._weights()
            if layer is None or not (layer.fits(torch.float32) and weights.fit()):
                self._run = None
            else:
                self._run = PairsInC(layer, (cache.k, cache.v), weights)
        if self._run is None:
            return None
        return self._run.draft(tokens, states.contiguous(), module.rope.table(stop, states.device), start, count)

    def _changed(self) -> bool:
        """Whether a weight or the cache's memory has been replaced since the last call."""
        module = self.module
        head, norms = module.target.decoder.head, (module.embed_norm, module.state_norm, module.norm)
        shared = head.weight, head.again, module.target.decoder.embedding
        own = module.first.in_c, module.embedding, module.head, *norms, module.fc_weight, module.fc_bias
        before, self._known = self._known, (*shared, *own, module.vocabulary, self.cache.k[0])
        return len(before) != len(self._known) or any(map(operator.is_not, before, self._known))

    def _weights(self) -> PairWeights:
        module = self.module
        decoder, form, paired = module.target.decoder, module.form, module.embed_norm is not None
        shared = decoder.head.weight if decoder.head.again is None else decoder.head.again
        return PairWeights(
            table=decoder.embedding if module.embedding is None else module.embedding,
            head=shared if module.head is None else module.head,
            epsilon=module.epsilon,
            norms=(module.embed_norm, module.state_norm) if paired else None,
            joined=None if paired else (module.fc_weight, module.fc_bias),
            norm=module.norm,
            ids=module.vocabulary,
            norm_residual=form.norm_residual,
            norm_output=form.norm_output,
        )
