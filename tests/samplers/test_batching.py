"""Rows that leave and join a state: a state names its row attributes and defines no methods for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from pardec.models.caches.kv_cache import KVCache
from pardec.samplers.batching import RowState, unbatchable


@dataclass
class Pair:
    left: torch.Tensor
    right: np.ndarray


class Base(RowState):
    per_row = ("count", "texts")
    fills: ClassVar[dict[str, float]] = {"count": -1}

    def __init__(self, first: int, rows: int, width: int) -> None:
        self.count = np.arange(first, first + rows)[:, None].repeat(width, 1)
        self.texts = [f"row {first + row}" for row in range(rows)]


class State(Base):
    per_row = ("pair", "inner", "cache", "nothing")

    def __init__(self, first: int, rows: int, width: int) -> None:
        super().__init__(first, rows, width)
        self.pair = Pair(torch.arange(first, first + rows), np.arange(first, first + rows))
        self.inner, self.nothing, self.changes = Base(first, rows, width), None, 0
        self.cache = KVCache(layers=1, batch=rows, capacity=2, kv_heads=1, head_dim=1)
        self.whole = np.arange(7)  # of no row

    def rows_changed(self) -> None:
        self.changes += 1


def test_a_state_keeps_the_rows_of_all_attributes_that_it_and_its_bases_name() -> None:
    state = State(0, 4, 2)
    inner = state.inner
    state.keep(np.array([3, 1]))
    assert state.per_row == ("count", "texts", "pair", "inner", "cache", "nothing")
    assert state.count.tolist() == [[3, 3], [1, 1]]
    assert state.texts == inner.texts == ["row 3", "row 1"]
    assert (state.pair.left.tolist(), state.pair.right.tolist()) == ([3, 1], [3, 1])
    assert state.inner is inner
    assert (state.cache.batch, state.nothing, state.changes, len(state.whole)) == (2, None, 1, 7)
    state.keep(np.array([], dtype=np.int64))
    assert (state.texts, len(state.count), state.cache.batch) == ([], 0, 2)  # a cache without rows is of no use


def test_a_wider_row_joins_and_the_others_are_filled_up() -> None:
    state = State(0, 3, 2)
    state.put(np.array([1]), State(9, 1, 3))
    assert state.count.tolist() == [[0, 0, -1], [9, 9, 9], [2, 2, -1]]
    assert state.texts == state.inner.texts == ["row 0", "row 9", "row 2"]
    assert state.pair.left.tolist() == [0, 9, 2]
    assert state.changes == 1


def test_a_state_without_row_attributes_accepts_rows_and_stays_the_same() -> None:
    class Shared(RowState):
        table = 5

    state = Shared()
    state.keep(np.array([0]))
    state.put(np.array([0]), Shared())
    assert (state.table, unbatchable(state)) == (5, None)
    assert Shared.per_row == ()
