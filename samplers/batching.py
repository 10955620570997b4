"""Rows leave and join what stages remember of a request: `take_rows` and `scatter_rows`.

Every tensor and array in a state has the live rows first. An object with methods `keep` and `put` of its own does it
itself. Rows cannot join a state that says `accepts_rows = False`, or one with `keep` and without `put`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.caches.kv_cache import KVCache


def take_rows(value: Any, rows: np.ndarray) -> Any:
    """`value` with only these rows, in this order, in every tensor and array it holds (rows are dimension 0).

    An object with a method `keep` of its own, such as a cache, drops the rows itself and stays the same object.
    """
    if hasattr(value, "keep"):
        value.keep(torch.from_numpy(rows) if isinstance(value, KVCache) else rows)
        return value
    if isinstance(value, Tensor):
        return value[torch.as_tensor(rows, device=value.device)]
    if isinstance(value, np.ndarray):
        return value[rows]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        each = {f.name: take_rows(getattr(value, f.name), rows) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **each)
    if isinstance(value, tuple):
        return tuple(take_rows(item, rows) for item in value)
    if isinstance(value, dict):
        return {key: take_rows(item, rows) for key, item in value.items()}
    return value


class Growing(Protocol):
    """A loop whose batch can grow."""

    recorder: Any  # with `reserve`

    @property
    def rows(self) -> np.ndarray:
        """[B] the index of each live row in the request."""
        ...

    def keep(self, keep: np.ndarray) -> None:
        """Keeps these live rows, in this order; one may be repeated."""
        ...


def add_rows(loop: Growing, count: int) -> np.ndarray:
    """Adds `count` live rows, copies of the first one until `put` fills them; where among the live rows they are.

    They take the lowest indices in the request that no live row has: those of finished rows, then new ones.
    """
    live = len(loop.rows)
    new = np.setdiff1d(np.arange(live + count), loop.rows)[:count]
    loop.keep(np.append(np.arange(live), np.zeros(count, dtype=np.int64)))
    loop.rows[live:] = new
    loop.recorder.reserve(int(new.max()) + 1)
    return np.arange(live, live + count)


def scatter_rows(value: Any, where: np.ndarray, other: Any) -> Any:
    """`value` with the rows of `other` in place of those at `where` [n], in every tensor and array it holds.

    Where the two differ in their other dimensions, the narrower one is padded with zeros; None counts as all zeros.
    An object with a method `put` of its own takes the rows itself and stays the same object.
    """
    if isinstance(value, Tensor):
        return _put(value, torch.from_numpy(where).to(value.device), other)
    if isinstance(value, np.ndarray):
        theirs = None if other is None else torch.from_numpy(other)
        return _put(torch.from_numpy(value), torch.from_numpy(where), theirs).numpy()
    if callable(getattr(value, "put", None)):
        value.put(where, other)
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        each = {f.name: (getattr(value, f.name), getattr(other, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(
            value, **{name: scatter_rows(mine, where, its) for name, (mine, its) in each.items()}
        )
    if isinstance(value, tuple):
        return tuple(scatter_rows(mine, where, its) for mine, its in zip(value, other, strict=True))
    if isinstance(value, dict):
        return {key: scatter_rows(mine, where, other[key]) for key, mine in value.items()}
    return value


def unbatchable(value: Any) -> str | None:
    """The name of the state in `value` that no row can join; None if all can."""
    if not getattr(value, "accepts_rows", True):
        return type(value).__name__
    if callable(getattr(value, "put", None)) or isinstance(value, Tensor | np.ndarray | type):
        return None
    if callable(getattr(value, "keep", None)):
        return type(value).__name__
    items: list[Any] = []
    if dataclasses.is_dataclass(value):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, tuple | dict):
        items = list(value.values()) if isinstance(value, dict) else list(value)
    return next((name for item in items if (name := unbatchable(item))), None)


def _put(mine: Tensor, where: Tensor, other: Tensor | None) -> Tensor:
    if other is None:
        other = mine.new_zeros(len(where), *mine.shape[1:])
    shape = [max(sizes) for sizes in zip(mine.shape[1:], other.shape[1:], strict=True)]
    return _widened(mine, shape).index_copy(0, where, _widened(other, shape).to(mine))


def _widened(value: Tensor, shape: list[int]) -> Tensor:
    """`value` [B, ...] with zeros behind it in every other dimension, up to `shape`."""
    sizes = [
        size for new, old in zip(reversed(shape), reversed(value.shape[1:]), strict=True) for size in (0, new - old)
    ]
    return pad(value, sizes) if any(sizes) else value
