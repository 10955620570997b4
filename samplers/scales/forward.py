"""The forwards of one transformer over the rows of a request, with guidance."""

from __future__ import annotations

import torch
from torch import Tensor

from pardec.models.scales.contracts import ScaleModel, TokenReduction

from ..host_transfer import upload
from .contracts import ScaleContext


class ScaleForward:
    """A transformer and its K/V; the unconditional copies of guided rows come after all rows.

    Where guidance grows, it is 0 at scale 0. The halves are fed there all the same, without logits: a token each, in
    the call that is made anyway, while feeding them with scale 1 would take a second call there.
    """

    def __init__(self, context: ScaleContext, model: ScaleModel, name: str = "transformer") -> None:
        self.maps, self.name, self.watch = context.maps, name, context.watch
        request, null = context.request, model.transformer.classes
        self.cfg, self.grows = request.cfg or 0.0, model.guidance == "growing"
        self.pairs = [row for row in range(request.rows) if request.guided(row)]
        if self.grows and len(model.scales) == 1:
            self.pairs = []
        if request.conditions:
            self.transformer = model.reading(request.conditions, self.pairs)
            labels = list(range(request.rows + len(self.pairs)))
        else:
            self.transformer = model.transformer
            labels = [null if label < 0 else label for label in request.labels] + [null] * len(self.pairs)
        self.labels = upload(torch.tensor(labels), model.device)
        self.halves = upload(torch.tensor(self.pairs, dtype=torch.int64), model.device)
        self.cache = self.transformer.new_cache(len(labels))
        self.fed = 0  # scales whose keys and values are stored
        context.maps.models[model.name] = model

    def next_logits(self, factor: float = 1.0, reduction: TokenReduction | None = None) -> tuple[Tensor, range]:
        """The logits of the next scale, [n, n_s, V] float32, and the positions fed for them; guided by `factor` cfg.

        Scales that it was not fed before go first in the same call, block-causal.
        """
        maps, rows = self.maps, len(self.maps)
        first, last = self.fed, maps.scale
        strength = 0.0
        if self.pairs:
            cfg = self.cfg * factor
            strength = cfg * last / (len(maps.scales) - 1) if self.grows else cfg - 1
        inputs = maps.read(first)
        wanted = torch.ones(len(self.labels), dtype=torch.bool)
        wanted[rows:] = strength != 0
        with self.watch(self.name):
            logits = self.transformer(
                self.labels,
                torch.cat((inputs, inputs[self.halves])) if self.pairs else inputs,
                self.cache,
                first=first,
                last=last,
                logits=None if bool(wanted.all()) else wanted,
                reduction=reduction,
            )
        self.fed = last + 1
        if strength:
            logits, uncond = logits[:rows], logits[rows:]
            guided = (1 + strength) * logits[self.halves] - strength * uncond
            logits = guided if len(self.pairs) == rows else logits.index_copy(0, self.halves, guided)
        return logits, maps.positions(first, last)
