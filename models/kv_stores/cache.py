"""A KV cache that keeps the newest slots of each row exact, and the others encoded by a store.

A forward reads keys and values of one layer at a time: they are decoded into memory that all layers use in turn, next
to those that are exact. So a cache takes the bytes of its chunks in all layers, and dense ones in a single layer. That
saves memory and not time: decoding a cache takes longer than reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from ..caches.kv_cache import KVCache, Slots, room_for
from ..errors import CacheError
from ..host_transfer import upload
from ..kernels.ops import apply_rotary
from ..layers.rope import GridRope, Rope
from ..plan import Plan
from .contracts import ChunkShape, Codec, Layout, Store, layout_bytes

Ropes = Sequence[Rope | GridRope]  # one per layer


class EncodedKV:
    """The chunks of the keys, or of the values, of one layer for all rows."""

    def __init__(self, codec: Codec, shape: ChunkShape, rows: int, chunks: int, device: torch.device) -> None:
        self.codec, self.shape, self.device = codec, shape, device
        self.parts = _zeros(codec.layout(shape), (rows, chunks), device)
        self.calibration = _zeros(codec.calibration_layout(shape), (rows,), device)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self.parts.values(), *self.calibration.values()))

    def write(self, row: int, start: int, x: Tensor) -> None:
        """Encodes x [n, G, K, D] as the chunks of `row` from `start` on; a row's first ones calibrate it."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if start == 0:
            for name, part in self.codec.calibrate(x).items():
                self.calibration[name][row] = part
        calibration = {name: part[row].expand(len(x), *part.shape[1:]) for name, part in self.calibration.items()}
        for name, part in self.codec.encode(x, calibration).items():
            self.parts[name][row, start : start + len(x)] = part

    def read_to(self, out: Tensor, rows: Tensor | slice, count: int) -> None:
        """Writes the first `count` chunks of these rows to out [R, count * G, K, D]."""
        parts = {name: part[rows, :count] for name, part in self.parts.items()}
        calibration = {name: part[rows] for name, part in self.calibration.items()}
        chunks = out.view(len(out), count, self.shape.tokens, *out.shape[2:])
        self.codec.decode_to(chunks, parts, calibration, self.shape)

    def keep(self, rows: Tensor) -> None:
        rows = rows.to(self.device)
        self.parts = {name: part.index_select(0, rows) for name, part in self.parts.items()}
        self.calibration = {name: part.index_select(0, rows) for name, part in self.calibration.items()}

    def grow(self, chunks: int) -> None:
        for name, part in self.parts.items():
            larger = part.new_zeros(len(part), chunks, *part.shape[2:])
            larger[:, : part.shape[1]] = part
            self.parts[name] = larger

    def put(self, rows: Tensor, other: EncodedKV) -> None:
        rows = rows.to(self.device)
        for name, part in other.parts.items():
            self.parts[name][rows, : part.shape[1]] = part
        for name, part in other.calibration.items():
            self.calibration[name][rows] = part


class StoredCache(KVCache):
    """The cache of a `Store`. `k` and `v` are each row's exact slots, from its own `first` on, then a scratch slot.

    A forward that writes a row's first slot feeds its prompt: what it leaves settled is encoded layer by layer, so that
    a prompt is never exact in all layers at once. `settle` encodes what has been committed since.
    """

    def __init__(self, like: KVCache, store: Store, capacity: int, *, scratch: int, ropes: Ropes | None = None) -> None:
        """`like` has the layers, heads, dtypes, devices and rows. `scratch` slots are for drafts after the text.

        `ropes` are needed by a store of keys before rotation.
        """
        self.store, self.ropes = store, ropes
        self.capacity, self.longest = capacity, None
        self.batch, self.offset, self.shared = like.batch, 0, None
        self.copies, self.ids, self.shift = like.copies, like.ids, like.shift
        self.first = np.zeros(self.batch, dtype=np.int64)  # [B] the first slot that is no chunk; 0: there is no chunk
        self.origins: Tensor | None = None  # [B] `Plan.origin` of each row, if any
        self._views = {}
        window = store.exact_slots(scratch)
        with torch.inference_mode(False):
            self.k = [self._window(part, window) for part in like.k]
            self.v = [self._window(part, window) for part in like.v]
            self.sinks = [
                tuple(part.new_zeros(self.batch, store.sinks, *part.shape[2:]) for part in pair)
                for pair in zip(like.k, like.v, strict=True)
            ]
            self.encoded = [
                (self._chunks(store.keys, key), self._chunks(store.values, value))
                for key, value in zip(like.k, like.v, strict=True)
            ]
            self._make_dense()

    def _make_dense(self) -> None:
        """The memory that layers of one shape share, one after the other."""
        self._dense: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor]] = {}
        for part in self.k:
            shape = (self.batch, self.capacity + 1, *part.shape[2:])
            key = (*part.shape[2:], part.device)
            if key not in self._dense:
                self._dense[key] = (room_for(shape, part.dtype, part.device), room_for(shape, part.dtype, part.device))

    def _chunks(self, codec: Codec, like: Tensor) -> EncodedKV:
        heads, dim = like.shape[2:]
        shape = ChunkShape(self.store.chunk, heads, dim, like.dtype)
        return EncodedKV(codec, shape, self.batch, self.store.chunks(self.capacity), like.device)

    def _window(self, like: Tensor, slots: int) -> Tensor:
        return like.new_zeros(self.batch, slots + 1, *like.shape[2:])

    @property
    def window(self) -> int:
        """The maximum number of exact slots in a row."""
        return self.k[0].shape[1] - 1

    @property
    def nbytes(self) -> int:
        """Bytes of everything: chunks with scales and minima, exact slots, and the dense memory of one layer."""
        dense = sum(part.nbytes for pair in self._dense.values() for part in pair)
        sinks = sum(part.nbytes for pair in self.sinks for part in pair)
        return sum(part.nbytes for part in (*self.k, *self.v)) + sinks + dense + self.encoded_bytes

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the chunks and of their rows' calibration."""
        return sum(part.nbytes for pair in self.encoded for part in pair)

    def dense(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V [B, C + 1, K, D] that this layer reads, valid until the next layer's."""
        part = self.k[layer]
        return self._dense[*part.shape[2:], part.device]

    def slots(self, plan: Plan, *, in_parts: bool = False) -> Slots:
        return StoredSlots(self, plan)

    def views(self, plan: Plan) -> None:
        """None: K and V are decoded before they are read."""
        return

    def settle(self, lengths: np.ndarray) -> None:
        """Encodes the chunks that left the residual of rows with `lengths` [B / copies] committed tokens."""
        with torch.inference_mode(False), torch.no_grad():
            for row, length in enumerate(self.own_lengths(lengths).tolist()):
                if (end := self.store.settled(length)) > self.first[row]:
                    self._encode_window(row, end)

    def own_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """[B]: the number of committed tokens of each cache row, including the image condition of its half."""
        own = np.tile(lengths, self.copies)
        return own if self.shift is None else own + self.shift.cpu().numpy()

    def _encode_window(self, row: int, end: int) -> None:
        """Encodes the exact slots of a row below `end`, and moves the others to the front."""
        first = int(self.first[row])
        for layer, pair in enumerate(zip(self.k, self.v, strict=True)):
            self.encode(layer, row, first, tuple(part[row : row + 1, : end - first] for part in pair))
            for part in pair:
                rest = part[row, end - first : -1].clone()
                part[row, : len(rest)] = rest
        self.first[row] = end

    def encode(self, layer: int, row: int, first: int, pair: Sequence[Tensor]) -> None:
        """Encodes K and V [1, n, K, D] of a row's slots from `first` on; those from 0 on begin with the sinks."""
        store = self.store
        lead = store.sinks if first == 0 else 0
        for which, (encoded, sinks, part) in enumerate(zip(self.encoded[layer], self.sinks[layer], pair, strict=True)):
            if lead:
                sinks[row] = part[0, :lead]
            x = part[:, lead:]
            if which == 0 and store.before_rotation:
                x = self.rotate(layer, x, slice(row, row + 1), first + lead, back=True)
            encoded.write(row, (first + lead - store.sinks) // store.chunk, x.reshape(-1, store.chunk, *x.shape[2:]))

    def decode_to(self, out: Sequence[Tensor], layer: int, rows: Tensor | slice, count: int) -> None:
        """Writes the first `count` chunks of these rows to K and V [R, count * G, K, D], with rotated keys."""
        keys, values = self.encoded[layer]
        if self.store.before_rotation:
            wide = out[0].new_empty(out[0].shape, dtype=keys.shape.wide)
            keys.read_to(wide, rows, count)
            out[0].copy_(self.rotate(layer, wide, rows, self.store.sinks))
        else:
            keys.read_to(out[0], rows, count)
        values.read_to(out[1], rows, count)

    def rotate(self, layer: int, keys: Tensor, rows: Tensor | slice, first: int, *, back: bool = False) -> Tensor:
        """keys [R, S, K, D] of the slots from `first` on, rotated to their positions, or `back` from there."""
        assert self.ropes is not None, "the store needs them"
        keys = keys.to(torch.promote_types(keys.dtype, torch.float32))
        positions = torch.arange(first, first + keys.shape[1], device=keys.device)
        origins = None if self.origins is None else self.origins[rows].to(keys.device)
        cos, sin = self.ropes[layer].at(positions[None], origins)
        scale = getattr(self.ropes[layer], "scale", 1.0)
        return apply_rotary(keys, cos, -sin) / scale**2 if back else apply_rotary(keys, cos, sin)

    # --- rows ---

    def keep(self, rows: Tensor) -> None:
        every = self._all(rows.cpu())
        super().keep(rows)
        self.first = self.first[every.numpy()]
        self.origins = None if self.origins is None else self.origins[every.to(self.origins.device)]
        with torch.inference_mode(False), torch.no_grad():
            self.sinks = [tuple(part[every.to(part.device)] for part in pair) for pair in self.sinks]
            for pair in self.encoded:
                for encoded in pair:
                    encoded.keep(every)
            self._make_dense()

    def grow(self, capacity: int) -> None:
        if capacity <= self.capacity:
            return
        self.capacity = capacity
        with torch.inference_mode(False), torch.no_grad():
            for pair in self.encoded:
                for encoded in pair:
                    encoded.grow(self.store.chunks(capacity))
            self._make_dense()

    def widen(self, window: int) -> None:
        """Room for at least `window` exact slots per row."""
        if window <= self.window:
            return
        with torch.inference_mode(False), torch.no_grad():
            for parts in (self.k, self.v):
                for layer, part in enumerate(parts):
                    parts[layer] = self._window(part, window)
                    parts[layer][:, : part.shape[1] - 1] = part[:, :-1]

    def put(self, rows: Tensor, other: KVCache) -> None:
        if not isinstance(other, StoredCache) or other.store != self.store:
            raise CacheError(
                "rows can move only between caches of one encoding", "decode both requests with the same sampler"
            )
        self.grow(other.capacity)
        self.widen(other.window)
        rows = self._all(rows.cpu())
        self.first[rows.numpy()] = other.first
        if self.origins is not None and other.origins is not None:
            self.origins[rows.to(self.origins.device)] = other.origins
        with torch.inference_mode(False), torch.no_grad():
            for parts, theirs in ((self.k, other.k), (self.v, other.v)):
                for part, source in zip(parts, theirs, strict=True):
                    part[rows.to(part.device), : other.window] = source[:, :-1]
            for mine, its in zip(self.sinks, other.sinks, strict=True):
                for part, source in zip(mine, its, strict=True):
                    part[rows.to(part.device)] = source
            for pair, others in zip(self.encoded, other.encoded, strict=True):
                for encoded, another in zip(pair, others, strict=True):
                    encoded.put(rows, another)

    def copy_out(self, row: int, start: int, stop: int) -> list[Tensor]:
        raise CacheError("encoded K/V cannot be stored in the prefix cache", "turn the prefix cache off")

    def copy_in(self, row: int, values: Sequence[Tensor]) -> None:
        raise CacheError("K/V of the prefix cache cannot be used with an encoded cache", "turn the prefix cache off")

    def _flat(self, rows: Tensor, slots: Tensor) -> Tensor:
        """`slots` [n, T] of these rows as indices into the exact ones; other slots go to the scratch slot."""
        own = slots - upload(self.first, slots.device)[rows.to(slots.device)][:, None]
        outside = (slots < 0) | (own < 0) | (own >= self.window)
        return (rows[:, None] * (self.window + 1) + own.masked_fill(outside, self.window)).flatten()


class StoredSlots(Slots):
    """Slots of one forward's keys and values in a `StoredCache`, and the K and V that its queries read."""

    cache: StoredCache

    def __init__(self, cache: StoredCache, plan: Plan) -> None:
        self.cache, self.views, self.stored = cache, None, True
        rows = torch.arange(plan.batch) if plan.rows is None else torch.from_numpy(plan.on_host(plan.rows))
        slots, lengths = (torch.from_numpy(plan.on_host(each)) for each in (plan.slots, plan.lengths))
        if plan.origin is not None and cache.store.before_rotation:
            if cache.origins is None:
                cache.origins = torch.zeros(cache.batch, dtype=torch.int64)
            cache.origins[rows] = plan.origin.cpu()
        begins = (slots == 0).any(1)
        self.prompts = [
            (row, int(length))
            for row, length, begin in zip(rows.tolist(), lengths.tolist(), begins.tolist(), strict=True)
            if begin
        ]
        for row, length in self.prompts:
            cache.first[row] = cache.store.settled(length)
        self.first = torch.from_numpy(cache.first)[rows]  # [n]
        deepest = torch.where(slots < 0, -1, slots - self.first[:, None]).amax()
        cache.widen(int(deepest) + 1)
        self.extent = cache.extent(plan)
        self.dense_slots = (
            rows[:, None] * (cache.capacity + 1) + torch.where(slots < 0, cache.capacity, slots)
        ).flatten()
        self.exact_slots = cache._flat(rows, slots)
        # Rows whose chunks and exact slots of earlier forwards are read.
        older = ~begins
        self.rows, first = rows[older], self.first[older]
        self.chunks = int((first.max() - cache.store.sinks) // cache.store.chunk) if len(first) and first.max() else 0
        reach = torch.arange(cache.window)
        at = first[:, None] + reach
        exact = at < lengths[older][:, None]
        from_flat = self.rows[:, None] * (cache.window + 1) + reach
        to_flat = self.rows[:, None] * (cache.capacity + 1) + at
        self.exact_from, self.exact_to = from_flat[exact], to_flat[exact]
        self._devices: dict[torch.device, tuple[Tensor, ...]] = {}

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        cache = self.cache
        dense, device = cache.dense(layer), k.device
        if device not in self._devices:  # once for the layers of a device
            indices = (self.exact_from, self.exact_to, self.dense_slots, self.exact_slots, self.rows)
            self._devices[device] = tuple(upload(index, device) for index in indices)
        sources, targets, dense_slots, exact_slots, rows = self._devices[device]
        if self.chunks:
            self._decode(layer, dense, rows)
        for whole, part, new in zip(dense, (cache.k[layer], cache.v[layer]), (k, v), strict=True):
            if len(sources):
                _flat(whole).index_copy_(0, targets, _flat(part).index_select(0, sources))
            new = new.flatten(0, 1).to(whole.dtype)
            _flat(whole).index_copy_(0, dense_slots, new)
            _flat(part).index_copy_(0, exact_slots, new)
        for row, length in self.prompts:
            if end := cache.store.settled(length):
                cache.encode(layer, row, 0, tuple(whole[row : row + 1, :end] for whole in dense))
        return dense

    def _decode(self, layer: int, dense: tuple[Tensor, Tensor], some: Tensor) -> None:
        cache, sinks = self.cache, self.cache.store.sinks
        rows = slice(None) if len(some) == cache.batch else some
        stop = sinks + self.chunks * cache.store.chunk
        parts = [whole[rows, sinks:stop] for whole in dense]  # views of all rows, but copies of some
        cache.decode_to(parts, layer, rows, self.chunks)
        for whole, sink, part in zip(dense, cache.sinks[layer], parts, strict=True):
            if some is rows:
                whole[rows, sinks:stop] = part
            if sinks:
                whole[rows, :sinks] = sink[rows]


def _flat(part: Tensor) -> Tensor:
    """Rows and slots as one dimension, a view."""
    return part.flatten(0, 1)


def _zeros(layout: Layout, lead: tuple[int, ...], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.zeros(*lead, *shape, dtype=dtype, device=device) for name, (shape, dtype) in layout.items()}


def stored_bytes(
    store: Store, shapes: Sequence[tuple[int, int]], dtype: torch.dtype, *, rows: int, capacity: int, scratch: int
) -> int:
    """`StoredCache.nbytes` of a cache before it is made; `shapes` are each layer's heads and head size."""
    chunks, window = store.chunks(capacity), store.exact_slots(scratch) + 1 + store.sinks
    total = 0
    for heads, dim in shapes:
        shape = ChunkShape(store.chunk, heads, dim, dtype)
        for codec in (store.keys, store.values):
            total += rows * (chunks * layout_bytes(codec.layout(shape)) + layout_bytes(codec.calibration_layout(shape)))
        total += 2 * rows * window * heads * dim * dtype.itemsize
    dense = sum(prod(shape) for shape in set(shapes)) * 2 * rows * (capacity + 1) * dtype.itemsize
    return total + dense
