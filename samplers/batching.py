"""Removes and adds rows in the state that a loop keeps for a request: `RowState`, `take_rows`, `scatter_rows`.

`RowRequest` does the same for the request's fields.

A class whose attributes have one entry per live row derives from `RowState`, names them in `per_row` and writes no
method that moves rows:

    class Counts(RowState):
        per_row = ("counts", "cache", "texts")

An attribute may be a tensor or an array with the rows first, a list with one item per row, a `KVCache`, another
`RowState`, a dataclass, tuple or dict of these, or None. Values that no method changes need no base class: every tensor
and array in a dataclass, tuple or dict has the live rows first. Rows cannot join a state that says
`accepts_rows = False`, or one with a method `keep` and no `put`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.caches.kv_cache import KVCache

from .host_transfer import upload


class RowState:
    """An object whose attributes have one entry per live row; rows are removed and replaced in place.

    Attributes:
        per_row: the names of these attributes; a class adds its own to those of its bases.
        per_slot: of these, the names whose entry stays when a row is replaced, such as the row's index in the request.
        fills: the value of the columns that an attribute gains when a wider row joins, if it is not 0; an instance
            may have its own mapping.
    """

    per_row: ClassVar[tuple[str, ...]] = ()
    per_slot: ClassVar[tuple[str, ...]] = ()
    fills: Mapping[str, float] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        inherited = (name for base in cls.__bases__ for name in getattr(base, "per_row", ()))
        cls.per_row = tuple(dict.fromkeys((*inherited, *cls.per_row)))

    def keep(self, rows: np.ndarray) -> None:
        """Keeps the live rows at these indices [n], in this order; an index may repeat."""
        for name in self.per_row:
            setattr(self, name, take_rows(_of_list(getattr(self, name)), rows))
        self.rows_changed()

    def put(self, where: np.ndarray, other: Self) -> None:
        """Replaces the rows at `where` [n] by the rows of `other`, which have had no forward."""
        self.before_join(where, other)
        for name in self.per_row:
            if name in self.per_slot:
                continue
            mine, theirs = (_of_list(getattr(state, name)) for state in (self, other))
            setattr(self, name, scatter_rows(mine, where, theirs, fill=self.fills.get(name, 0)))
        self.rows_changed()

    def before_join(self, where: np.ndarray, other: Self) -> None:
        """Called before the rows of `other` replace those at `where`, to make their shapes compatible."""

    def rows_changed(self) -> None:
        """Called after rows were removed or replaced, to update derived attributes."""


class _Items(list[Any]):
    """A list with one item per row."""


def _of_list(value: Any) -> Any:
    return _Items(value) if type(value) is list else value


def take_rows(value: Any, rows: np.ndarray) -> Any:
    """`value` with only these rows, in this order, in every tensor and array in it (rows are dimension 0).

    An object with a method `keep` of its own, such as a cache, drops the rows itself and stays the same object.
    """
    if isinstance(value, KVCache):
        if len(rows):
            value.keep(torch.from_numpy(rows))
        return value
    if hasattr(value, "keep"):
        value.keep(rows)
        return value
    if isinstance(value, _Items):
        return [value[at] for at in rows.tolist()]
    if isinstance(value, Tensor):
        return value[upload(rows, value.device)]
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


class RowRequest:
    """A frozen dataclass in which some fields have one entry per row of a request, or none at all.

    Attributes:
        per_row: the names of these fields: tuples, or objects with a method `take` like the one here.
    """

    per_row: ClassVar[tuple[str, ...]] = ()

    def take(self, rows: Sequence[int]) -> Self:
        """The request with these rows only; its `source` still has to be set."""
        return self._with(
            {
                name: tuple(value[row] for row in rows) if isinstance(value, tuple) else value.take(rows)
                for name in self.per_row
                if (value := getattr(self, name))
            }
        )

    def join(self, others: Iterable[Self]) -> Self:
        """This request followed by the rows of others of the same kind; its `source` still has to be set."""
        every = (self, *others)
        return self._with({name: tuple(chain(*(getattr(each, name) for each in every))) for name in self.per_row})

    def _with(self, fields: dict[str, Any]) -> Self:
        return cast("Self", dataclasses.replace(cast("Any", self), **fields))


class Growing(Protocol):
    """A loop whose batch can grow."""

    recorder: Any  # with `reserve`

    @property
    def rows(self) -> np.ndarray:
        """[B] the index of each live row in the request."""
        ...

    def keep(self, keep: np.ndarray) -> None:
        """Keeps these live rows, in this order; a row may repeat."""
        ...


def add_rows(loop: Growing, count: int) -> np.ndarray:
    """Adds `count` live rows, copies of the first one until `put` fills them; returns their indices among live rows.

    They take the lowest indices in the request that no live row has: those of finished rows, then new ones.
    """
    live = len(loop.rows)
    new = np.setdiff1d(np.arange(live + count), loop.rows)[:count]
    loop.keep(np.append(np.arange(live), np.zeros(count, dtype=np.int64)))
    loop.rows[live:] = new
    loop.recorder.reserve(int(new.max()) + 1)
    return np.arange(live, live + count)


def scatter_rows(value: Any, where: np.ndarray, other: Any, *, fill: float = 0) -> Any:
    """Replaces the rows at `where` [n] of every tensor and array in `value` by the rows of `other`.

    Where the two differ in their other dimensions, the narrower one is padded with `fill`; None counts as all `fill`.
    An object with a method `put` of its own takes the rows itself and stays the same object.
    """
    if isinstance(value, Tensor):
        return _put(value, upload(where, value.device), other, fill)
    if isinstance(value, np.ndarray):
        theirs = None if other is None else torch.from_numpy(other)
        return _put(torch.from_numpy(value), torch.from_numpy(where), theirs, fill).numpy()
    if isinstance(value, KVCache):
        value.put(torch.from_numpy(where), other)
        return value
    if isinstance(value, _Items):
        items = list(value)
        for at, item in zip(where.tolist(), other, strict=True):
            items[at] = item
        return items
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
    """The name of a state in `value` to which no row can be added; None if rows can be added to all."""
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


def _put(mine: Tensor, where: Tensor, other: Tensor | None, fill: float) -> Tensor:
    if other is None:
        other = mine.new_full((len(where), *mine.shape[1:]), fill)
    shape = [max(sizes) for sizes in zip(mine.shape[1:], other.shape[1:], strict=True)]
    return _widened(mine, shape, fill).index_copy(0, where, _widened(other, shape, fill).to(mine))


def _widened(value: Tensor, shape: list[int], fill: float) -> Tensor:
    """`value` [B, ...] with `fill` after it in every other dimension, up to `shape`."""
    sizes = [
        size for new, old in zip(reversed(shape), reversed(value.shape[1:]), strict=True) for size in (0, new - old)
    ]
    return pad(value, sizes, value=fill) if any(sizes) else value
