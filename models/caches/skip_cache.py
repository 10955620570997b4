"""A cache for early skipping: after some layers, only the most important queries of a row go on to the next layers.

    d = mean |h - h'| / (|h'| / sqrt(E)),  divided by its largest value in the row where that exceeds 1
    h = the states after the layer, h' those of the last forward in which the query went on from here
    the queries of the largest  ranking + drift d  go on; the others keep their K, V and last states of the layers after

What is added to d, and the least number of queries that go on, is `Plan.ranking`; rows without it compute all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..host_transfer import upload
from ..layers.layer import DecoderLayer, LayerPass
from ..plan import Plan, Ranking
from .kv_cache import KVCache
from .reuse_cache import narrowed
from .shares import floor_of_share

_STEPS = 2.0**16  # importances are rounded to multiples of 1 / _STEPS
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class EarlySkip:
    """The share of a row's queries that go on after each of these layers, in rows with a `Plan.ranking`."""

    shares: tuple[tuple[int, float], ...]  # layer, share; in the order of layers
    drift: float  # factor of d


class SkipCache(KVCache):
    """K and V, and per slot the states after each layer of `EarlySkip` and after the last layer."""

    by_row = rewritten = ("states",)  # a row's first forward writes them before they are read

    def __init__(self, plain: KVCache, skip: EarlySkip, *, width: int) -> None:
        """Takes the storage of `plain`, for states of this `width`."""
        vars(self).update(vars(plain))
        self.skip, self.width, self.last = skip, width, len(plain.k) - 1
        self.shares = {layer: share for layer, share in skip.shares if layer < self.last}
        self.states: dict[int, Tensor] = {}  # layer -> [rows, C + 1, E]
        self._counts: np.ndarray | None = None  # how many have gone on in each row
        self._picked: Tensor | None = None  # [B, M] queries of the forward that have gone on, -1 pads; None: all
        self._narrow: tuple[LayerPass, LayerPass] | None = None  # a layer's pass, and the same of `_picked` alone

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(tensor.nbytes for tensor in self.states.values())

    def grow(self, capacity: int) -> None:
        if capacity <= self.capacity:
            return
        super().grow(capacity)
        with torch.inference_mode(False), torch.no_grad():
            for layer, tensor in self.states.items():
                self.states[layer] = F.pad(tensor, (0, 0, 0, self.capacity + 1 - tensor.shape[1]))

    def through(self, layer: DecoderLayer, h: Tensor, step: LayerPass, index: int) -> Tensor:
        """Runs the layer at `index` on the states h [B * M, E] of the queries that went on.

        After the last layer the states of all queries are returned, [B * Q, E].
        """
        if index == 0:
            self._picked = self._narrow = self._counts = None
        if self._picked is not None:
            if self._narrow is None or self._narrow[0] is not step:
                self._narrow = step, narrowed(step, self._picked, self)
            out = layer.forward(h, self._narrow[1], index)
        else:
            out = layer.forward(h, step, index)
        if index not in self.shares and index != self.last:
            return out
        assert step.slots is not None, "a forward with a cache"
        if index not in self.states:
            with torch.inference_mode(False):
                self.states[index] = out.new_zeros(self.batch, self.capacity + 1, self.width)
        stored, flat = self.states[index].flatten(0, 1), step.slots.flat.to(out.device)
        if index != self.last and (ranking := step.plan.ranking) is not None:
            out = self._go_on(out, stored, flat, step.plan, ranking, index)
        stored.index_copy_(0, self._of_picked(flat, len(stored) - 1), out)
        return out if index != self.last or self._picked is None else stored[flat]

    def _go_on(self, h: Tensor, stored: Tensor, flat: Tensor, plan: Plan, ranking: Ranking, index: int) -> Tensor:
        """Picks the queries that go on after the layer at `index`; returns their states [B * M, E]."""
        batch, width = plan.tokens.shape
        now = torch.arange(width, device=h.device).expand(batch, width) if self._picked is None else self._picked
        before = stored[self._of_picked(flat, len(stored) - 1)].float()
        size = before.norm(dim=-1) / math.sqrt(self.width) + _TINY
        drift = ((h.float() - before).abs().mean(-1) / size).view(now.shape)
        absent = (now < 0) | (plan.slots.gather(1, now.clamp(min=0)) < 0)
        drift = drift.masked_fill(absent, 0)
        drift = drift / drift.amax(1, keepdim=True).clamp(min=1)
        rows = len(ranking.values)  # under guidance, pairs of rows share the choice of the first
        importance = ranking.values.gather(1, now[:rows].clamp(min=0)) + self.skip.drift * drift[:rows]
        # The last bits depend on how many queries a matmul has: states that have not changed must tie in any batch.
        importance = (importance * _STEPS).round().masked_fill(absent[:rows], -torch.inf)
        every = (plan.on_host(plan.slots)[:rows] >= 0).sum(1)
        count = np.maximum(floor_of_share(self.shares[index], every), np.minimum(ranking.least, every))
        going = every if self._counts is None else self._counts
        if (count >= going).all():
            return h
        self._counts = count = np.minimum(count, going)
        most = int(count.max())
        order = importance.argsort(dim=1, descending=True, stable=True)[:, :most]
        kept = upload(np.arange(most) < count[:, None], h.device)
        order = torch.where(kept, order, now.shape[1]).sort(1).values
        order = order.repeat(batch // rows, 1)
        inside = order < now.shape[1]
        order = order.clamp(max=now.shape[1] - 1)
        self._picked, self._narrow = torch.where(inside, now.gather(1, order), -1), None
        first = torch.arange(0, len(h), now.shape[1], device=h.device)[:, None]
        return h[(first + order).flatten()]

    def _of_picked(self, flat: Tensor, scratch: int) -> Tensor:
        """[B * M] the indices `flat` [B * Q] of the picked queries; padding has the index of a `scratch` slot."""
        if self._picked is None:
            return flat
        picked = self._picked.to(flat.device)
        width = len(flat) // len(picked)
        rows = torch.arange(0, len(flat), width, device=flat.device)[:, None]
        return torch.where(picked < 0, scratch, flat[rows + picked.clamp(min=0)]).flatten()
