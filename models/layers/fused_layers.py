"""Successive layers as one call of the kernels in C, where these support all that the layers do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.cpu.layers import LayersInC, compiled
from ..kernels.ops import C
from .layer import DecoderLayer, LayerPass

Run = Callable[[Tensor, range, Tensor | None], Tensor]  # states [B * Q, E], indices of layers, and the queries [B, M]
# that go on after the last one's attention, or None; to states [B * Q or B * M, E]


class FusedLayers:
    """All layers of a decoder for `pardec_layers`, made at the first forward and anew when weights are replaced."""

    def __init__(self) -> None:
        self._known: tuple[Hashable, LayersInC | None] | None = None

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
        fused = self._of(list(layers), step.plain_matmuls, dtype, version)
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

    def _of(self, layers: list[nn.Module], plain: bool, dtype: torch.dtype, version: int) -> LayersInC | None:
        key = plain, dtype, version, DecoderLayer.replacements, *map(id, layers)
        if self._known is None or self._known[0] != key:
            own = [layer.weights_in_c() if type(layer) is DecoderLayer else None for layer in layers]
            fit = [each for each in own if each is not None and each.fit(dtype, plain=plain)]
            self._known = key, LayersInC(fit) if len(fit) == len(own) and compiled() else None
        return self._known[1]
