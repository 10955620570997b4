"""Caches whose memory stays where it is while rows leave, and is handed on to the next request.

A recorded step writes and reads where it did when it was recorded. So rows that stay move up in place, and the memory
of a cache that dies waits for the next one of its size, with the steps that were recorded on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from ..kv_cache import KVCache

_SLOTS = 128  # capacities are multiples of this, so that requests of about one length share memory
_IDLE = 2  # stores that wait for a request
_numbers = count(1)


@dataclass(frozen=True, eq=False)
class Store:
    """Memory of K and V, [R, C + 1, K, D] a layer."""

    k: list[Tensor]
    v: list[Tensor]
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and capacity."""
        return self.k[0].shape[0], self.k[0].shape[1] - 1


class Stores:
    """The stores of one stack: lent to caches, and kept for a while when those die."""

    def __init__(
        self, make: Callable[[int, int], KVCache], rounded: Callable[[int], int], dropped: Callable[[int], None]
    ) -> None:
        """`make` a cache of rows and capacity; rows are `rounded` up; `dropped` is told the number of a lost store."""
        self._make, self._rounded, self._dropped = make, rounded, dropped
        self._idle: list[Store] = []

    def take(self, rows: int, capacity: int) -> Store:
        """A store with room for so many rows and slots; what it holds means nothing."""
        size = self._rounded(rows), -(-capacity // _SLOTS) * _SLOTS
        found = next((store for store in self._idle if store.size == size), None)
        if found is not None:
            self._idle.remove(found)
        while len(self._idle) > _IDLE:
            self._dropped(self._idle.pop(0).number)
        if found is not None:
            return found
        made = self._make(*size)
        return Store(made.k, made.v)

    def give(self, store: Store) -> None:
        """Takes back a store that nobody uses any more. Any time, the collector may call: nothing else happens here."""
        self._idle.append(store)


class StaticCache(KVCache):
    """A cache in the first rows of a store, which may have more slots than the cache is said to have."""

    def __init__(self, stores: Stores, batch: int, capacity: int) -> None:
        super().__init__(layers=0, batch=batch, capacity=capacity, kv_heads=0, head_dim=0)
        self._stores = stores
        self._enter(stores.take(batch, capacity))

    def over(self, rows: int) -> KVCache:
        """A cache of the first `rows` of the store, for a recorded step."""
        cache = KVCache(layers=0, batch=rows, capacity=self.store.size[1], kv_heads=0, head_dim=0)
        cache.k, cache.v = ([tensor[:rows] for tensor in held] for held in (self.store.k, self.store.v))
        return cache

    def keep(self, rows: Tensor) -> None:
        self.ids = self.ids[rows.cpu()]
        rows = self._all(rows)
        self.shift = None if self.shift is None else self.shift[rows.to(self.shift.device)]
        self.batch = len(rows)
        more = self.batch > self.store.size[0]
        self._copy(self._stores.take(self.batch, self.capacity) if more else self.store, rows)

    def grow(self, capacity: int) -> None:
        if capacity > self.store.size[1]:
            self._copy(self._stores.take(self.batch, capacity), torch.arange(self.batch))
        self.capacity = max(capacity, self.capacity)

    def _copy(self, store: Store, rows: Tensor) -> None:
        """The rows [n] of this cache become the first ones of `store`, which it is in from then on."""
        with torch.inference_mode(False), torch.no_grad():
            for held, taking in ((self.k, store.k), (self.v, store.v)):
                for ours, theirs in zip(held, taking, strict=True):
                    theirs[: len(rows), : self.capacity] = ours[:, : self.capacity][rows.to(ours.device)]
        if store is not self.store:
            self._leave()
            self._enter(store)
        else:
            self._bind()

    def _enter(self, store: Store) -> None:
        self.store = store
        self._leave = weakref.finalize(self, self._stores.give, store)
        self._leave.atexit = False
        self._bind()

    def _bind(self) -> None:
        self.k, self.v = ([tensor[: self.batch] for tensor in held] for held in (self.store.k, self.store.v))
        self._views.clear()

    def _flat(self, rows: Tensor, slots: Tensor) -> Tensor:
        room = self.store.size[1]
        return (rows[:, None] * (room + 1) + torch.where(slots < 0, room, slots)).flatten()
