"""Successive layers, or the whole forward of a chain, as one call of the kernels in C, where these support it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..caches.kv_cache import KVCache
from ..kernels.cpu.layers import ChainInC, LayersInC, compiled
from ..kernels.cpu.packed import PackedWeight
from ..kernels.ops import C, choose_ops
from ..plan import TargetStates
from .layer import DecoderLayer, LayerPass
from .rope import Rope

Run = Callable[[Tensor, range, Tensor | None], Tensor]  # states [B * Q, E], indices of layers, and the queries [B, M]
# that go on after the last one's attention, or None; to states [B * Q or B * M, E]


class FusedLayers:
    """All layers of a decoder for `pardec_layers`, made at the first forward and anew when weights are replaced."""

    def __init__(self) -> None:
        self._known: tuple[Hashable, LayersInC | None] | None = None

    def __reduce__(self) -> tuple[type[FusedLayers], tuple[()]]:
        return FusedLayers, ()  # a copy of a decoder has other addresses

    def run(self, layers: Iterable[nn.Module], step: LayerPass, dtype: torch.dtype, version: int) -> Run | None:
        """A function that runs a range of `layers` in C; None where the kernels do not support this forward.

        `dtype` is the states', and `version` counts how often weights were replaced in place.
        """
        pattern, slots = step.pattern, step.slots
        causal = pattern.causal and pattern.backend == "c"
        if step.ops is not C or step.hooks is not None or pattern.rows is not None or not (causal or pattern.in_c):
            return None
        if slots is not None and (slots.start is None or slots.cache.k[0].dtype != dtype):
            return None
        fused = self.of(list(layers), dtype, version)
        if fused is None:
            return None
        where: dict[str, Any] = {"ends": pattern.ends, "causal": causal}
        if slots is not None:
            where |= {"kv": (slots.cache.k, slots.cache.v), "first": slots.start}
        tables = step.cos.contiguous(), step.sin.contiguous()

        def run(h: Tensor, some: range, picked: Tensor | None) -> Tensor:
            mask = (pattern if picked is None else pattern.narrowed(picked)).last
            more: dict[str, Any] = {"layers": some, "picked": picked, "mask": mask, **where}
            return fused.forward(h.contiguous(), tables, step.plan.batch, pattern.extent, **more)

        return run

    def of(self, layers: list[nn.Module], dtype: torch.dtype, version: int) -> LayersInC | None:
        """All of `layers`; None where the kernels do not support them."""
        key = dtype, version, DecoderLayer.replacements, *map(id, layers)
        if self._known is None or self._known[0] != key:
            own = [layer.weights_in_c() if type(layer) is DecoderLayer else None for layer in layers]
            fit = [each for each in own if each is not None and each.fit(dtype)]
            self._known = key, LayersInC(fit) if len(fit) == len(own) and compiled() else None
        return self._known[1]


def chains(decoder: Any, cache: KVCache, wanted: TargetStates) -> bool:
    """Whether a `Chain` can take the place of forwards of this `Decoder` over `cache`."""
    config, parts = decoder.config, (decoder, decoder.embed, decoder.norm, decoder.head)
    more = config.each or config.grid or config.window or config.attention_cap or config.logit_cap
    if decoder.has_hooks or more or config.attention_sink or decoder.placement is not None:
        return False
    if any(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in parts):
        return False
    if list(wanted.layers) != sorted(set(wanted.layers)) or -1 in wanted.layers:
        return False
    dtype, k = decoder.norm.weight.dtype, cache.k[0]
    plain = type(cache) is KVCache and cache.shared is None and cache.shift is None and cache.batch == 1
    return plain and k.dtype == dtype == decoder.embed.weight.dtype == torch.float32 and k.device.type == "cpu"


class Chain:
    """Forwards of chains of tokens of one row over its cache, as one call of the kernels in C."""

    def __init__(self, decoder: Any, cache: KVCache, wanted: TargetStates) -> None:
        """`decoder`: a `Decoder`."""
        self.decoder, self.cache, self.wanted = decoder, cache, wanted
        self._known: tuple[Any, ...] = ()  # the weights and the cache's memory, by which `_run` was made
        self._run: ChainInC | None = None

    def run(self, tokens: Tensor, start: int) -> tuple[Tensor, Tensor | None] | None:
        """Logits [1, T, V] after tokens [1, T] at positions from `start` on, and the states [1, T, S] wanted.

        The bits are those of `Decoder.forward`; None where that has to run.
        """
        decoder, rope = self.decoder, self.decoder.rope
        if decoder.training or choose_ops(tokens.device, torch.float32) is not C or not isinstance(rope, Rope):
            return None
        fused = decoder.fused.of(list(decoder.layers), torch.float32, decoder.weights_version)
        norm, head = decoder.norm, decoder.head
        weight = head.weight if head.again is None else head.again
        now = fused, decoder.embed.weight, norm.weight, weight, self.cache.k[0]
        if len(self._known) != len(now) or any(one is not other for one, other in zip(now, self._known, strict=True)):
            self._known, self._run = now, None
            if fused is not None:
                packed = weight if isinstance(weight, PackedWeight) else None
                kv, table = (self.cache.k, self.cache.v), (decoder.embed.weight, decoder.config.embedding_scale)
                self._run = ChainInC(fused, kv, table, (norm.weight, norm.eps), packed, self.wanted.layers)
        if self._run is None:
            return None
        h = None if self._run.embeds else decoder.embedded(tokens)[0].contiguous()
        tables = rope.table(start + tokens.shape[1], tokens.device)
        normed, states, logits = self._run.forward(tokens[0].contiguous(), h, tables, start)
        if self.wanted.normed:
            states = normed if states is None else torch.cat((states, normed), -1)
        logits = decoder.unembed(normed) if logits is None else logits
        return logits[None], None if states is None else states[None]
