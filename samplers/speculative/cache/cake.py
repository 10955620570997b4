"""Keeps the K/V that the last queries attend to, and more of them in layers with dispersed and shifting attention.

CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences, https://arxiv.org/abs/2503.12491

    A = attention of the last `window` tokens of the prompt over the older ones, of each layer and head
    preference_l = disp_l^(1/tau1) var_l^(1/tau2),  disp = -sum A log A,  var = sum over slots of Var over the queries
    budget_l = preference_l / sum of preferences  (budget - window) L,  at most what there is
    kept: the budget_l slots of the highest  avgpool5(mean A + gamma Var A),  averaged over the query heads of a head of
    keys, and the last `window` ones

After the prompt, a layer that exceeds its budget evicts by the same indicator, A being that of the newest token over
the kept slots: an evicted slot never returns. If a prompt is no longer than `budget`, all layers have equal budgets.

Deviates from the authors' code, where rows of a batch share their budgets, which follow from sums over all of them:
each row has its own, unless `reference` is set; a layer's excess goes to the other layers; slots are pooled in text
order. The whole text's keys and values stay in memory, in addition to the copies that are read. Not supported: eviction
layer by layer while the prompt is fed, which bounds the memory and not what is kept.
Exact: no; while a text has at most `budget` tokens, nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from pardec.models.caches.compact_cache import text_slots
from pardec.models.errors import SpecError

from ...batching import scatter_rows
from ...host_transfer import to_host, upload
from ...registry import register
from ..sparse_kv import Choice, CommittedSlots, RefreshState, SparseAttention


@dataclass
class Eviction(RefreshState):
    """The slots kept in each row, and when rows were last filled; rows are dimension 0, and 0 means empty."""

    first: np.ndarray  # [B] the slot from which on no slot has been evicted
    budgets: np.ndarray  # [B, L] slots that each layer keeps below that; all 0: not known yet
    survivors: Tensor  # [B, L, N, K] int64: slots below `first` that are kept, plus 1, in order
    counts: np.ndarray  # [B, L] their number for each head of keys

    @staticmethod
    def start(rows: int, refresh: int) -> Eviction:
        """The state of rows that have evicted nothing."""
        zeros = np.zeros(rows, dtype=np.int64)
        none = torch.zeros(rows, 0, 0, 0, dtype=torch.int64)
        empty = np.zeros((rows, 0), dtype=np.int64)
        return Eviction(np.full(rows, refresh), zeros, zeros.copy(), empty, none, empty.copy())

    def candidates(
        self, layer: int, rows: np.ndarray, stop: np.ndarray, heads: int, device: torch.device
    ) -> tuple[Tensor, np.ndarray]:
        """The slots of `rows` [b] below `stop` [b] still kept in a layer, in order, and their number for each head.

        They are [b, S, K], padded with -1, and [b].
        """
        begin = np.minimum(self.first[rows], stop)
        count = stop - begin
        fresh = begin[:, None] + np.arange(int(count.max()))
        both = upload(np.where(fresh < stop[:, None], fresh, -1), device)[..., None].expand(-1, -1, heads)
        if self.survivors.shape[1]:
            where = upload(rows, self.survivors.device)
            survivors = self.survivors[where, layer, :, :heads].to(device) - 1
            both, count = torch.cat((survivors, both), 1), count + self.counts[rows, layer]
        none = torch.iinfo(both.dtype).max
        ordered = torch.where(both < 0, none, both).sort(1).values
        return torch.where(ordered == none, -1, ordered)[:, : int(count.max())], count

    def keep_slots(self, rows: np.ndarray, chosen: Sequence[Tensor], first: np.ndarray, counts: np.ndarray) -> None:
        """Sets the slots that `rows` [b] keep: `chosen` [b, N, K] of each layer, and all from `first` [b] on.

        `counts` [b, L] of them are slots, the first ones.
        """
        most = [max(each.shape[axis] for each in chosen) for axis in (1, 2)]
        wide = [F.pad(each + 1, (0, most[1] - each.shape[2], 0, most[0] - each.shape[1])) for each in chosen]
        new = torch.stack([each.to(wide[0].device) for each in wide], 1)
        self.survivors = scatter_rows(self.survivors.to(new.device), rows, new)
        self.first, self.counts = scatter_rows(self.first, rows, first), scatter_rows(self.counts, rows, counts)


def preference(attention: Tensor, tau1: float, tau2: float) -> Tensor:
    """[B] float64 of one layer: disp^(1/tau1) var^(1/tau2) of attention [B, H, n, S] over the older slots.

    disp = -sum A log A over heads, queries and slots; var = the sum over heads and slots of the queries' variance.
    """
    a = attention.double()
    disp = -torch.xlogy(a, a).sum((1, 2, 3))
    return disp ** (1 / tau1) * a.var(2).sum((1, 2)) ** (1 / tau2)


def layer_budgets(preferences: np.ndarray, average: int, most: int) -> np.ndarray:
    """[L] int64: `average` L slots divided by `preferences` [L], at most `most` per layer; excess is redistributed.

    >>> layer_budgets(np.array([8.0, 1.0, 1.0]), 10, 20).tolist()
    [20, 5, 5]
    """
    count, total = len(preferences), min(average, most) * len(preferences)
    whole = preferences.sum()
    shares = preferences / whole if np.isfinite(whole) and whole > 0 else np.full(count, 1 / count)
    budgets = np.minimum((shares * total).astype(np.int64), most)
    while (left := total - int(budgets.sum())) > 0:
        room = np.flatnonzero(budgets < most)
        budgets[room] += left // len(room)
        budgets[room[: left % len(room)]] += 1
        budgets = np.minimum(budgets, most)
    return budgets


def indicator(attention: Tensor, heads: int, gamma: float) -> Tensor:
    """[B, S, K]: mean + gamma var over the queries of attention [B, H, n, S], pooled over 5 slots; mean over a group.

    The variance of a single query is 0.
    """
    score = attention.mean(2)
    if attention.shape[2] > 1:
        score = score + gamma * attention.var(2)
    pooled = F.avg_pool1d(score, 5, stride=1, padding=2)
    return rearrange(pooled, "b (k g) s -> b s k g", k=heads).mean(-1)


def best(slots: Tensor, score: Tensor, budget: np.ndarray) -> Tensor:
    """[B, N, K]: of the candidates `slots` [B, S, K] (-1: none) the `budget` [B] of the highest score, in order.

    N is the largest budget; -1 fills a row that has a smaller one.
    """
    score = score.masked_fill(slots < 0, -torch.inf)
    rank = score.argsort(dim=1, descending=True, stable=True).argsort(1)
    survivors = (rank < upload(budget, rank.device)[:, None, None]) & (slots >= 0)
    none = torch.iinfo(slots.dtype).max
    ordered = torch.where(survivors, slots, none).sort(1).values[:, : int(budget.max())]
    return torch.where(ordered == none, -1, ordered)


_ALL = 1 << 40  # one layer may keep nearly everything: the cache is as long as the text


@register("cake", checked="reference:samplers.speculative.test_cake.naive_kept")
class Cake(SparseAttention):
    budget: Annotated[int, "tokens that a layer keeps on average"] = 512
    window: Annotated[int, "last tokens, which are always kept and whose queries score the others"] = 32
    gamma: Annotated[float, "weight of the attention's variance in a slot's score"] = 200.0
    tau1: Annotated[float, "temperature of the dispersion in a layer's preference"] = 1.0
    tau2: Annotated[float, "temperature of the variance in a layer's preference"] = 1.0
    refresh: Annotated[int, "rounds after which a layer evicts what exceeds its budget"] = 16
    reference: Annotated[bool, "one budget for all rows of a batch, as in the authors' code"] = False

    def __post_init__(self) -> None:
        self.require("window", least=2)
        self.require("refresh", least=1)
        self.require("gamma", least=0)
        self.require("budget", least=self.window + 1, hint="the window is part of the budget")
        for name in ("tau1", "tau2"):
            if not getattr(self, name) > 0:
                raise SpecError(f"cake: {name} must be above 0, got {getattr(self, name)}", hint=f"leave {name} out")

    @property
    def most(self) -> int:
        return _ALL

    @property
    def last_queries(self) -> int:
        return self.window

    def refresh_state(self, rows: int) -> Eviction:
        return Eviction.start(rows, self.refresh)

    def choose_again(self, slots: CommittedSlots, state: RefreshState) -> Choice:
        assert isinstance(state, Eviction), "refresh_state made it"
        return self.evict(slots, state)

    def choose(self, slots: CommittedSlots) -> Choice:
        return self.evict(slots, self.refresh_state(int(slots.rows.max()) + 1))

    def evict(self, slots: CommittedSlots, state: Eviction) -> Choice:
        """Chooses the slots that the rows keep among those kept so far, and records them in `state`."""
        rows, long = slots.rows, slots.length > self.budget
        heads = [k.shape[2] for k in slots.cache.k]
        if not long.any():  # the whole text is visible; slots are evicted once a text no longer fits
            nothing = [torch.zeros(len(rows), 0, k.shape[2], dtype=torch.int64, device=k.device) for k in slots.cache.k]
            return Choice(nothing, np.zeros_like(slots.length), np.zeros((slots.layers, len(rows)), dtype=np.int64))
        first = np.where(long, slots.length - self.window, 0)
        candidates = [
            state.candidates(layer, rows, first, count, q.device)
            for layer, (q, count) in enumerate(zip(slots.queries, heads, strict=True))
        ]
        attentions = [
            self.attention(slots, layer, q, slot, first)
            for layer, (q, (slot, _)) in enumerate(zip(slots.queries, candidates, strict=True))
        ]
        self._share(slots, long, attentions, state)
        chosen, counts = [], []
        for layer, (attention, (slot, count)) in enumerate(zip(attentions, candidates, strict=True)):
            budget = np.where(long, state.budgets[rows, layer], 0)
            chosen.append(best(slot, indicator(attention, heads[layer], self.gamma), budget))
            counts.append(np.minimum(budget, count))
        state.keep_slots(rows, chosen, first, np.stack(counts, 1))
        return Choice(chosen, first, np.stack(counts))

    def attention(self, slots: CommittedSlots, layer: int, q: Tensor, slot: Tensor, first: np.ndarray) -> Tensor:
        """[b, H, n, S]: attention of each row's last queries q [b, n, H, D] over the candidates `slot` [b, S, K].

        The softmax includes the slots from `first` [b] on; the result does not.
        """
        where, kv = upload(slots.rows, slot.device), slot.shape[2]
        begin, end = (upload(each, slot.device)[:, None] for each in (first, slots.length))
        near = begin + torch.arange(int((slots.length - first).max()), device=slot.device)
        whole = torch.cat((slot, torch.where(near < end, near, -1)[..., None].expand(-1, -1, kv)), 1)
        keys = text_slots(slots.cache, "k", layer, whole.clamp(min=0), where)
        grouped = rearrange(q, "b n (k g) d -> b k g n d", k=kv).float()
        scores = torch.einsum("bkgnd,bskd->bkgns", grouped, keys.float()) / q.shape[-1] ** 0.5
        position = end - q.shape[1] + torch.arange(q.shape[1], device=slot.device)
        visible = (whole[:, None] >= 0) & (whole[:, None] <= position[..., None, None])
        hidden = rearrange(~visible, "b n s k -> b k 1 n s")
        weights: Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1)[..., : slot.shape[1]]
        return weights.flatten(1, 2)

    def _share(self, slots: CommittedSlots, long: np.ndarray, attentions: list[Tensor], state: Eviction) -> None:
        """Fixes the budgets of rows that have none yet."""
        rows, average = slots.rows, self.budget - self.window
        if not state.budgets.shape[1]:
            state.budgets = np.zeros((len(state.rounds), slots.layers), dtype=np.int64)
        new = np.flatnonzero(long & (state.budgets[rows] == 0).all(1))
        if attentions[0].shape[2] < 2:  # the prompt was short, and its queries are gone
            state.budgets[rows[new]] = average
        elif len(new):
            parts = {str(layer): self._preference(attention) for layer, attention in enumerate(attentions)}
            each = np.stack(list(to_host(parts).values()), 1)
            for at in new.tolist():
                most = int(slots.length[at]) - self.window
                state.budgets[rows[at]] = layer_budgets(each[at], average, most)

    def _preference(self, attention: Tensor) -> Tensor:
        """[b]: the preference of one layer."""
        if self.reference:
            whole = rearrange(attention, "b h n s -> 1 (b h) n s")
            return preference(whole, self.tau1, self.tau2).expand(len(attention))
        return preference(attention, self.tau1, self.tau2)
