"""Each layer computes the answer tokens whose inputs have changed most, and reuses its outputs for the others.

SPA-Cache: Singular Proxies for Adaptive Caching in Diffusion Language Models, https://arxiv.org/abs/2602.02544

    everything is computed in the first step and every `refresh` steps, the answer every `response` steps; otherwise
    of a layer l of N, but the first, floor(rho_l n) of the n tokens of the answer, at least one: those with the least
    cos(P x, P x'), x the input of attention and x' that of the step before, P of `rank` rows
    rho_l = ratio * first^(((l / N - peak) / peak)^2) for l / N < peak, and at least 1/32
    rho_l = ratio * last^(((l / N - peak) / (1 - peak))^2) from there on

P has the largest singular directions of the layer's value projection, times their singular values. A token that is not
computed keeps its K and V, and the layer adds to its state what it added before: a layer stores its width and `rank`
more values per token than K and V. The shares at both ends of the stack, `first` and
`last`, are of `ratio`; by default they and `peak` are the published ones, 0.12, 0.52 and 0.75 for LLaDA, and where rows
are shifted, as Dream's are, 1/6, 5/6 and 0.5. A trace shows the positions that the first layer computes.
Deviates from the authors' code, which computes K and V of the whole answer in every layer at every step, and the prompt
once more in the first layer, where it cannot have changed; cosines are rounded to 2^-16, so that tokens that have not
changed tie in any batch.
Exact: no, but for `refresh=1`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch

from pardec.models.caches.reuse_cache import LayerReuse
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Cache, Canvas, QuerySpec
from .changes import LEAVE_ONE_OUT_REUSED, SOME_COMPUTED, elapsed

_LEAST = 1 / 32  # least share of the answer that a layer before the peak computes
_PUBLISHED = ((0.75, 0.12, 0.52), (0.5, 1 / 6, 5 / 6))  # (peak, first, last) of LLaDA, then of shifted families


@register("spa", checked="reference:reference.naive_spa.decode")
class SingularProxyCache(Cache):
    attention = "bidirectional"
    conflicts: ClassVar[Reasons] = {
        Trait.LEAVE_ONE_OUT: LEAVE_ONE_OUT_REUSED,
        Trait.READS_ATTENTION: SOME_COMPUTED,
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"ratio": (0.25, 0.5), "response": (7, 3)}

    ratio: Annotated[float, "share of the answer's positions that the layer at the peak computes"] = 0.25
    refresh: Annotated[int, "steps between forwards that compute everything: 0 only the first, 1 always"] = 50
    response: Annotated[int, "steps between forwards that compute all of the answer: 0 never, 1 always"] = 7
    rank: Annotated[int, "singular directions of the value projection that are compared"] = 128
    peak: Annotated[
        float | None, "place of the layer that computes most, from 0 (first) to 1 (last); none: as published"
    ] = None
    first: Annotated[float | None, "fraction of `ratio` at the first layer; none: as published"] = None
    last: Annotated[float | None, "fraction of `ratio` after the last layer; none: as published"] = None

    def __post_init__(self) -> None:
        self.require("ratio", least=0, most=1)
        self.require("refresh", "response", least=0)
        self.require("rank", least=1)
        if self.peak is not None and not 0 < self.peak < 1:
            raise SpecError(f"spa: peak must be above 0 and below 1, got {self.peak}", "peak=0.5")
        for name in ("first", "last"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise SpecError(f"spa: {name} must be above 0 and at most 1, got {value}", f"{name}=0.5")

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 else "relaxed"

    def fit(self, model: LanguageModel) -> SingularProxyCache:
        return self._filled(model.decoding_config.shift)

    def layer_reuse(self, layers: int) -> LayerReuse:
        own = self._filled(0)
        assert own.peak is not None
        assert own.first is not None
        assert own.last is not None
        at = np.arange(layers) / layers
        before_peak = np.maximum(own.first ** (((at - own.peak) / own.peak) ** 2) * own.ratio, _LEAST)
        after_peak = own.last ** (((at - own.peak) / (1 - own.peak)) ** 2) * own.ratio
        return LayerReuse(tuple(np.where(at < own.peak, before_peak, after_peak).tolist()), self.rank)

    def query(self, canvas: Canvas, state: None) -> QuerySpec:
        full = (canvas.nfe == 0) | elapsed(canvas, self.refresh)
        start = np.where(full, 0, np.maximum(canvas.prompt - canvas.shift, 0))
        order = np.arange(canvas.length)
        mask = torch.from_numpy((order >= start[:, None]) & (order < canvas.end[:, None]))
        return QuerySpec(start, canvas.end, mask, similar=~full & ~elapsed(canvas, self.response))

    def _filled(self, shift: int) -> SingularProxyCache:
        own = (self.peak, self.first, self.last)
        values = [there if here is None else here for here, there in zip(own, _PUBLISHED[shift], strict=True)]
        return replace(self, peak=values[0], first=values[1], last=values[2]) if None in own else self
