"""Keys and values of every layer, preallocated and addressed by slot."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from ..errors import CacheError, CapacityError
from ..kernels.attention import AttentionPattern, additive_mask, visible_rows
from ..kernels.cpu.memory import rooms
from ..kernels.cpu.slots import move_c, moves
from ..plan import Plan

Views = tuple[Tensor, Tensor, Tensor, Tensor]  # K and V written [B, Q, K, D], K and V read [B, S, K, D]

_LARGE = 1 << 18  # bytes of a layer's keys from which on each head's keys are contiguous on a CPU
_SPANS = 4  # slices whose views are kept


class KVCache:
    """K and V of N layers for B rows of C slots; slot C is a scratch slot, written by padding and never read.

    Nothing is ever concatenated or shifted: a plan says which slots its queries overwrite, and `lengths` says how many
    are valid, so a rollback is a plan with smaller lengths.

    With a shared part (Hydragen, https://arxiv.org/abs/2402.05099), the slots below `offset` are the same for all rows
    and in memory once, in the cache of one row `shared`; `k` and `v` hold each row's slots from `offset` on. Slots are
    numbered from 0 nevertheless, and `capacity` counts them all. The shared part is written by forwards over `shared`;
    only stacks that attend in parts can read such a cache, and the others are refused.

    A subclass lists its further per-row attributes in `by_row`; `keep` and `put` then handle them.
    """

    by_row: ClassVar[tuple[str, ...]] = ()  # names of attributes with one entry per row: see `rows_of`
    rewritten: ClassVar[tuple[str, ...]] = ()  # those that a row's next forward overwrites: `put` leaves them alone

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        capacity: int,
        kv_heads: int | Sequence[int],
        head_dim: int | Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | Sequence[torch.device] = "cpu",
        shared: int = 0,
    ) -> None:
        """Raises CapacityError for a batch or capacity below 1. Shape and device may be one per layer.

        `shared` of the first slots are the same for all rows; at least one slot is a row's own.
        """
        if batch < 1 or capacity < 1:
            raise CapacityError(f"a cache needs at least one row and one slot, got {batch} rows of {capacity} slots")
        if not 0 <= shared < capacity:
            raise CapacityError(
                f"shared must lie in 0..{capacity - 1}, so that a row has a slot of its own, got {shared}"
            )
        devices = [device] * layers if isinstance(device, (str, torch.device)) else list(device)
        heads = [kv_heads] * layers if isinstance(kv_heads, int) else list(kv_heads)
        dims = [head_dim] * layers if isinstance(head_dim, int) else list(head_dim)
        shapes = [(batch, capacity - shared + 1, *shape) for shape in zip(heads, dims, strict=True)]
        self.capacity = capacity
        self.longest: int | None = None  # slots of a row's text, where the cache holds fewer
        self.batch = batch
        self.offset = shared
        self.shared: KVCache | None = None
        if shared:
            sizes: dict[str, Any] = {"kv_heads": heads, "head_dim": dims, "dtype": dtype, "device": devices}
            self.shared = KVCache(layers=layers, batch=1, capacity=shared, **sizes)
        with torch.inference_mode(False):  # so that a cache made in inference mode can be written outside it
            parts = _rooms_for(shapes, dtype, [torch.device(name) for name in devices])
            self.k, self.v = parts[0::2], parts[1::2]

        self.copies = 1  # copies of each sequence: rows 0 .. R-1 are the first copies, rows R .. 2R-1 the second, ...
        self.ids = torch.arange(batch)  # [R] on the host: original index of each row's sequence
        self.shift: Tensor | None = None  # [copies * R] offset added to a slot's number to find it in a row
        self._views: dict[tuple[int, int, int], list[Views]] = {}

    @property
    def reach(self) -> int:
        """The number of slots that a plan may name."""
        return self.capacity if self.longest is None else self.longest

    @property
    def nbytes(self) -> int:
        """Bytes of K and V, with the shared part counted once."""
        return sum(tensor.nbytes for tensor in (*self.k, *self.v)) + (0 if self.shared is None else self.shared.nbytes)

    def check(self, plan: Plan) -> None:
        """Raises CacheError or CapacityError, before any write, for a plan that the host knows to be out of bounds."""
        if plan.rows is None and plan.batch != self.batch:
            raise CacheError(
                f"the plan has {plan.batch} rows and the cache {self.batch}",
                "give the cache row of each plan row in Plan.rows, or drop finished rows with KVCache.keep",
            )
        top = max(plan.uniform or 0, plan.span[1] if plan.span else 0)
        if plan.slots.device.type == "cpu":
            if plan.uniform is None and plan.batch:
                top = max(top, int(plan.lengths.max()))
            if plan.slot_span is None and plan.slots.numel():
                top = max(top, int(plan.slots.max()) + 1)
            self._demand_own(plan.slots)
            if (
                plan.rows is not None
                and plan.batch
                and not 0 <= int(plan.rows.min()) <= int(plan.rows.max()) < self.batch
            ):
                raise CacheError(f"Plan.rows must lie in 0..{self.batch - 1}, got {plan.rows.tolist()}")
        if top > self.reach:
            raise CapacityError(
                f"the plan needs {top} slots and the cache has {self.reach}",
                "make the cache larger: new_cache(batch, capacity)",
            )

    def layout(self, plan: Plan) -> Plan:
        """`plan` with the slots that this cache stores its tokens in; positions of keys stay the text's."""
        return plan

    def reader(self, plan: Plan, rope: Any, device: torch.device) -> Reader | None:
        """The reader that attends in place of the kernels, if any; `plan` is the one before `layout`."""
        return None

    def slots(self, plan: Plan, *, in_parts: bool = False) -> Slots:
        """Where `plan` writes: computed once per forward, for all layers.

        Raises CacheError where there is a shared part and the caller does not attend `in_parts`.
        """
        if self.shared is not None and not in_parts:
            raise CacheError(
                f"the rows of this cache share their first {self.offset} slots, which this stack cannot read",
                "make the cache without a shared part",
            )
        return Slots(self, plan)

    def flat(self, plan: Plan) -> Tensor:
        """Where `plan` writes: flat indices [B * Q] into the rows' own slots, each row's followed by a scratch slot."""
        rows = plan.rows if plan.rows is not None else torch.arange(plan.batch, device=plan.slots.device)
        self._demand_own(plan.slots)
        return self._flat(rows, plan.slots)

    def flat_slots(self, slots: Tensor) -> Tensor:
        """`flat` of slots [B, N] of all rows; -1 is the scratch slot."""
        return self._flat(torch.arange(len(slots), device=slots.device), slots)

    def views(self, plan: Plan) -> list[Views] | None:
        """The views that each layer writes and reads for `plan`, if they are slices; the last few are kept."""
        span = plan.span or plan.slot_span
        if plan.rows is not None or span is None:
            return None
        extent = plan.uniform if plan.uniform is not None else self.extent(plan)
        key = (*span, extent)
        views = self._views.get(key)
        if views is not None:
            return views
        if len(self._views) == _SPANS:
            del self._views[next(iter(self._views))]
        start, stop, end = span[0] - self.offset, span[1] - self.offset, extent - self.offset
        if start < 0:
            raise CacheError(
                f"slot {span[0]} is one of the first {self.offset}, which all rows share: a row cannot write there"
            )
        views = self._views[key] = []
        for k, v in zip(self.k, self.v, strict=True):
            writes = k.narrow(1, start, stop - start), v.narrow(1, start, stop - start)
            views.append((*writes, k.narrow(1, 0, end), v.narrow(1, 0, end)))
        return views

    def extent(self, plan: Plan) -> int:
        """Slots that a forward reads: the common or longest length where the host knows it, else the capacity."""
        if plan.uniform is not None:
            return plan.uniform
        if plan.lengths.device.type == "cpu" and plan.batch and not plan.fixed:
            return max(1, int(plan.lengths.max()))
        return self.capacity

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order (a finished row leaves, a row is repeated), all copies of each."""
        self.ids = self.ids[rows.cpu()]
        rows = self._all(rows)
        self.shift = None if self.shift is None else self.shift[rows.to(self.shift.device)]
        with torch.inference_mode(False), torch.no_grad():
            for store in (self.k, self.v):
                for layer, tensor in enumerate(store):
                    smaller = room_for((rows.numel(), *tensor.shape[1:]), tensor.dtype, tensor.device)
                    store[layer] = torch.index_select(tensor, 0, rows.to(tensor.device), out=smaller)
            for name in self.by_row:
                setattr(self, name, rows_of(getattr(self, name), rows))
        self.batch = rows.numel()
        self._views.clear()

    def grow(self, capacity: int) -> None:
        """Room for at least `capacity` slots per row; contents stay."""
        if capacity <= self.capacity:
            return
        with torch.inference_mode(False), torch.no_grad():
            for store in (self.k, self.v):
                for layer, tensor in enumerate(store):
                    larger = (len(tensor), capacity - self.offset + 1, *tensor.shape[2:])
                    store[layer] = room_for(larger, tensor.dtype, tensor.device)
                    store[layer][:, : tensor.shape[1] - 1] = tensor[:, :-1]
        self.capacity = capacity
        self._views.clear()

    def put(self, rows: Tensor, other: KVCache) -> None:
        """Writes the rows of `other`, all copies of each, over `rows` [n]; grows where `other` has more slots.

        Raises CacheError unless both have the same shared part, or none.
        """
        if self.shared is not other.shared:
            raise CacheError(
                "rows can move only between caches with the same shared part", "make both caches without a shared part"
            )
        self.grow(other.capacity)
        if self.longest is not None:
            self.longest = max(self.longest, other.reach)
        stop = other.capacity - other.offset
        rows = self._all(rows.cpu())
        with torch.inference_mode(False), torch.no_grad():
            for store, theirs in ((self.k, other.k), (self.v, other.v)):
                for tensor, source in zip(store, theirs, strict=True):
                    tensor[rows.to(tensor.device), :stop] = source[:, :stop]
            for name in self.by_row:
                if name not in self.rewritten:
                    setattr(self, name, with_rows(getattr(self, name), rows, getattr(other, name), self.batch))

    def copy_out(self, row: int, start: int, stop: int) -> list[Tensor]:
        """A copy of K and V of the slots start .. stop - 1 of a row: [stop - start, F] per device.

        F are the values of a slot in all layers there, each layer's keys before its values.
        """
        if self.shared is not None and start < self.offset:
            first = self.shared.copy_out(0, start, min(stop, self.offset))
            rest = self.copy_out(row, self.offset, max(stop, self.offset))
            return [torch.cat(parts) for parts in zip(first, rest, strict=True)]
        own = slice(start - self.offset, stop - self.offset)
        with torch.inference_mode(False), torch.no_grad():
            return [torch.cat([part[row, own].flatten(1) for part in parts], 1) for parts in self._by_device()]

    def copy_in(self, row: int, values: Sequence[Tensor]) -> None:
        """Writes the result of `copy_out` to a row's slots from 0 on; slots of the shared part change for all rows.

        Raises CapacityError for more slots than a shared part has.
        """
        if self.shared is not None:
            if (count := len(values[0])) > self.offset:
                raise CapacityError(f"{count} slots cannot be copied into a shared part of {self.offset} slots")
            return self.shared.copy_in(0, values)
        with torch.inference_mode(False), torch.no_grad():
            for parts, rows in zip(self._by_device(), values, strict=True):
                sizes = [part.shape[2:].numel() for part in parts]
                for part, own in zip(parts, torch.split(rows, sizes, 1), strict=True):
                    part[row, : len(own)] = own.view(len(own), *part.shape[2:])

    def move(self, source: Tensor, target: Tensor, rows: Tensor | None = None) -> None:
        """Copy slots `source` [B, T] to `target` [B, T], all reads before all writes; -1 in `target` moves nothing.

        Brings the accepted path of a tree draft together. `rows` [B] names the cache rows, all in order by default.
        """
        if source.shape != target.shape:
            raise CacheError(f"move: source is {list(source.shape)} and target {list(target.shape)}; they must agree")
        if target.device.type == "cpu" and not ((target >= 0) & (target != source)).numpy().any():
            return  # nothing moves
        rows = torch.arange(source.shape[0], device=source.device) if rows is None else rows
        if self.copies > 1:
            rows, source, target = self._all(rows), source.repeat(self.copies, 1), target.repeat(self.copies, 1)
        if self.shift is not None:
            shift = self.shift[rows][:, None]
            source, target = source + shift, torch.where(target < 0, -1, target + shift)
        sources, targets = self._flat(rows, source), self._flat(rows, target)
        if moves(stores := (*self.k, *self.v)):
            move_c(stores, sources, targets)
            return
        for store in (self.k, self.v):
            for tensor in store:
                flat = tensor.flatten(0, 1)
                flat.index_copy_(0, targets.to(tensor.device), flat.index_select(0, sources.to(tensor.device)))

    def _by_device(self) -> list[list[Tensor]]:
        """K and V of each layer in turn, grouped by device."""
        parts = [part for pair in zip(self.k, self.v, strict=True) for part in pair]
        return [[part for part in parts if part.device == device] for device in dict.fromkeys(p.device for p in parts)]

    def _all(self, rows: Tensor) -> Tensor:
        """`rows` and the rows of the other copies of the same sequences."""
        return torch.cat([rows + copy * (self.batch // self.copies) for copy in range(self.copies)])

    def _demand_own(self, slots: Tensor) -> None:
        """Raises CacheError for slots of the shared part; on a GPU the host does not wait for them."""
        if self.offset and slots.device.type == "cpu" and bool(((slots >= 0) & (slots < self.offset)).any()):
            raise CacheError(f"the first {self.offset} slots are shared by all rows: a row cannot write there")

    def _flat(self, rows: Tensor, slots: Tensor) -> Tensor:
        own = self.capacity - self.offset
        bound = torch.where(slots < self.offset, own, slots - self.offset)
        return (rows[:, None] * (own + 1) + bound).flatten()


class Slots:
    """The slots of a cache to which one forward writes its keys and values."""

    stored = False  # whether K/V go to a store: only `write` stores them, and returns K/V to read
    start: int | None = None  # the first slot of each row, where all rows' slots are the same slice of the cache

    def __init__(self, cache: KVCache, plan: Plan) -> None:
        self.cache = cache
        self._plan = plan
        span = None if plan.rows is not None else plan.span or plan.slot_span
        self.start = None if span is None else span[0] - cache.offset

    @cached_property
    def views(self) -> list[Views] | None:
        """The views of each layer, where slots are slices."""
        return self.cache.views(self._plan)

    @cached_property
    def flat(self) -> Tensor:
        """The slots of all rows as one dimension, [B * Q]."""
        return self.cache.flat(self._plan)

    def shared(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V of the shared part, [1, offset, K, D] each."""
        part = self.cache.shared
        assert part is not None, "the cache has one"
        return part.k[layer][:, :-1], part.v[layer][:, :-1]

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores k, v [B, Q, K, D] (-1: scratch slot), and returns the K and V to read, [rows, >= S, K, D] each."""
        if self.views is not None:
            to_k, to_v, from_k, from_v = self.views[layer]
            to_k.copy_(k)
            to_v.copy_(v)
            return from_k, from_v
        keys, values = self.cache.k[layer], self.cache.v[layer]
        flat = self.flat.to(keys.device)
        keys.flatten(0, 1).index_copy_(0, flat, k.flatten(0, 1))
        values.flatten(0, 1).index_copy_(0, flat, v.flatten(0, 1))
        return keys, values


def rows_of(value: Any, rows: Tensor) -> Any:
    """The entries at `rows` [n], which may repeat, of a tensor or array [B, ...], a cache, or a collection of these.

    None stays None.
    """
    if value is None:
        return None
    if isinstance(value, KVCache):
        value.keep(rows)
        return value
    if isinstance(value, Tensor):
        return value[rows.to(value.device)]
    if isinstance(value, np.ndarray):
        return value[rows.cpu().numpy()]
    if isinstance(value, dict):
        return {name: rows_of(part, rows) for name, part in value.items()}
    return type(value)(rows_of(part, rows) for part in value)


def with_rows(value: Any, rows: Tensor, other: Any, batch: int) -> Any:
    """`value`, of `batch` rows, with the entries of `other` at `rows` [n]; `value` itself if either is None."""
    return value if value is None or other is None else written(value, rows, other, batch)


def written(value: Any, rows: Tensor, other: Any, batch: int) -> Any:
    """Like `with_rows`, but returns a new object, except for caches; zeros pad a tensor that is None or narrower."""
    if value is None and other is None:
        return None
    if isinstance(value, KVCache):
        value.put(rows, other)
        return value
    if isinstance(value, (list, tuple)):
        parts = zip(value, other, strict=True)
        return type(value)(written(ours, rows, theirs, batch) for ours, theirs in parts)
    if isinstance(value, np.ndarray):
        result = value.copy()
        result[rows.cpu().numpy()] = other
        return result
    like = other if value is None else value
    width = max(part.shape[1] for part in (value, other) if part is not None)
    whole = like.new_zeros(batch if value is None else len(value), width, *like.shape[2:])
    if value is not None:
        whole[:, : value.shape[1]] = value
    index = rows.to(whole.device)
    whole[index] = 0
    if other is not None:
        whole[index, : other.shape[1]] = other
    return whole


def room_for(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, memory: Tensor | None = None) -> Tensor:
    """Zeros of `shape` [B, C + 1, K, D], whose rows and slots can be viewed as one dimension.

    A CPU's attention goes through one head after another, and reads a large cache faster where each head is contiguous.

    Args:
        memory: bytes that the zeros are to fill.
    """
    rows, slots, heads, dim = shape
    by_head = device.type == "cpu" and rows * slots * heads * dim * dtype.itemsize >= _LARGE
    order = (heads, rows, slots, dim) if by_head else shape
    whole = torch.zeros(order, dtype=dtype, device=device) if memory is None else memory.view(dtype).view(order).zero_()
    return whole.permute(1, 2, 0, 3) if by_head else whole


def _rooms_for(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, devices: Sequence[torch.device]) -> list[Tensor]:
    """The keys and the values of each layer in turn; on a CPU they lie together, in huge pages."""
    each = [(shape, dtype, device) for shape, device in zip(shapes, devices, strict=True) for _ in range(2)]
    if any(device.type != "cpu" for device in devices):
        return [room_for(*one) for one in each]
    parts = rooms([math.prod(shape) * dtype.itemsize for shape, *_ in each])
    return [room_for(*one, part) for one, part in zip(each, parts, strict=True)]


class Reader(ABC):
    """One forward's attention to a cache."""

    def narrowed(self, picked: Tensor) -> Reader:
        """The reader for the queries `picked` [B, M] alone."""
        return self

    @abstractmethod
    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        """Attention of q [B, Q, H, D] over k, v [R, >= S, K, D], as `Slots.write` returned them -> [B, Q, H, D].

        `pattern` is what each query may see; a reader leaves out more of it. Caches with readers are not for models
        with a `cap`, which is None.
        """


def attend_hidden(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, hidden: Tensor) -> Tensor:
    """`attend` by the definition, without the slots `hidden`.

    Args:
        q: [B, Q, H, D].
        k: [R, >= S, K, D]; v the same.
        pattern: what is visible besides.
        hidden: [B, N, K] or [B, N, K, Q] bool, of the first N <= S slots; K may be 1, for all heads.
    """
    k, v = visible_rows(k, pattern), visible_rows(v, pattern)
    kv, slots, queries = k.shape[2], k.shape[1], q.shape[1]
    if hidden.dim() == 3:
        hidden = hidden[..., None]
    gone = F.pad(rearrange(hidden, "b n k q -> b k q n"), (0, slots - hidden.shape[1]))
    gone = gone.expand(-1, kv, queries, -1)
    added = q.new_zeros(gone.shape).masked_fill_(gone, float("-inf"))
    mask = additive_mask(pattern, queries, slots, q.dtype, q.device)
    added = added if mask is None else added + mask
    # A masked weight is 0, but 0 * NaN is NaN: slots that no query of a head sees are set to 0.
    dead = rearrange((added == float("-inf")).all(2), "b k s -> b s k 1")
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.masked_fill(dead, 0).transpose(1, 2),
        v.masked_fill(dead, 0).transpose(1, 2),
        attn_mask=added.repeat_interleave(q.shape[2] // kv, 1),
        enable_gqa=q.shape[2] != kv,
    )
    return out.transpose(1, 2)
