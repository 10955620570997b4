"""Caches at fixed addresses, handed on from one request to the next.

A captured step writes and reads the addresses that it was captured with. So the remaining rows move up in place, and
the memory of a dead cache waits for the next one of its size, with the graphs that were captured on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..plan import Plan

SLOTS = 128  # capacities are multiples of this, so that requests of about one length share memory
_IDLE = 2  # limit of idle stores
_store_ids = count(1)


@dataclass(frozen=True, eq=False)
class Store:
    """Memory of K and V, [R, C + 1, K, D] per layer."""

    k: list[Tensor]
    v: list[Tensor]
    number: int = field(default_factory=lambda: next(_store_ids))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and capacity."""
        return self.k[0].shape[0], self.k[0].shape[1] - 1


class Stores:
    """The stores of one stack: caches acquire them, and release them when they die."""

    def __init__(
        self,
        make: Callable[[int, int], KVCache],
        rounded: Callable[[int, int], tuple[int, int]],
        on_drop: Callable[[int], None],
    ) -> None:
        """`make(rows, capacity)` makes a cache; both are `rounded` up; `on_drop` gets the number of a dropped store."""
        self._make, self._rounded, self._on_drop = make, rounded, on_drop
        self._idle: list[Store] = []

    def acquire(self, rows: int, capacity: int) -> Store:
        """A store with room for this many rows and slots; its contents are undefined."""
        size = self._rounded(rows, capacity)
        idle = next((store for store in self._idle if store.size == size), None)
        if idle is not None:
            self._idle.remove(idle)
        while len(self._idle) > _IDLE:
            self._on_drop(self._idle.pop(0).number)
        if idle is not None:
            return idle
        try:
            cache = self._make(*size)
        except torch.OutOfMemoryError:
            while self._idle:
                self._on_drop(self._idle.pop().number)
            cache = self._make(*size)
        return Store(cache.k, cache.v)

    @property
    def nbytes(self) -> int:
        """Bytes of the idle stores."""
        return sum(part.nbytes for store in self._idle for part in (*store.k, *store.v))

    def release(self, store: Store) -> None:
        """Takes back a store that nobody uses. The garbage collector may call this any time: it does nothing else."""
        self._idle.append(store)


class StaticCache(KVCache):
    """A cache in the first rows of a store, whose slots may exceed the cache's capacity."""

    def __init__(self, stores: Stores, batch: int, capacity: int) -> None:
        super().__init__(layers=0, batch=batch, capacity=capacity, kv_heads=0, head_dim=0)
        self._stores = stores
        self._use(stores.acquire(batch, capacity))

    def first_rows(self, rows: int, slots: int | None) -> KVCache:
        """A cache of the first `rows` of the store, for a captured step that reads `slots` slots; None: all."""
        cache = _FirstRows(layers=0, batch=rows, capacity=self.store.size[1], kv_heads=0, head_dim=0)
        cache.slots_read = self.store.size[1] if slots is None else slots
        cache.k, cache.v = ([tensor[:rows] for tensor in layers] for layers in (self.store.k, self.store.v))
        return cache

    def keep(self, rows: Tensor) -> None:
        self.ids = self.ids[rows.cpu()]
        rows = self._all(rows)
        self.shift = None if self.shift is None else self.shift[rows.to(self.shift.device)]
        self.batch = len(rows)
        too_small = self.batch > self.store.size[0]
        self._copy(self._stores.acquire(self.batch, self.capacity) if too_small else self.store, rows)

    def grow(self, capacity: int) -> None:
        if capacity > self.store.size[1]:
            self._copy(self._stores.acquire(self.batch, capacity), torch.arange(self.batch))
        self.capacity = max(capacity, self.capacity)

    def _copy(self, store: Store, rows: Tensor) -> None:
        """Copies rows [n] of this cache to the first rows of `store`, where the cache then lives."""
        with torch.inference_mode(False), torch.no_grad():
            for sources, targets in ((self.k, store.k), (self.v, store.v)):
                for source, target in zip(sources, targets, strict=True):
                    target[: len(rows), : self.capacity] = source[:, : self.capacity][rows.to(source.device)]
        if store is not self.store:
            self._release()
            self._use(store)
        else:
            self._bind()

    def _use(self, store: Store) -> None:
        self.store = store
        self._release = weakref.finalize(self, self._stores.release, store)
        self._release.atexit = False
        self._bind()

    def _bind(self) -> None:
        self.k, self.v = ([tensor[: self.batch] for tensor in layers] for layers in (self.store.k, self.store.v))
        self._views.clear()

    def _flat(self, rows: Tensor, slots: Tensor) -> Tensor:
        capacity = self.store.size[1]
        return (rows[:, None] * (capacity + 1) + torch.where(slots < 0, capacity, slots)).flatten()


class _FirstRows(KVCache):
    """A cache whose forwards read a fixed number of slots."""

    slots_read = 0

    def extent(self, plan: Plan) -> int:
        return self.slots_read
