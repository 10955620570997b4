"""A cache of chosen slots: copies of keys and values of a longer text, and room for the tokens after it.

    slot j < filled[b] of layer l and head h:  K/V of the text's slot chosen[l][b, j, h]
    slot filled[b] + i:                        K/V of the text's slot first[b] + i

Keys are stored after RoPE at their absolute positions, and queries keep theirs, so that copies attend as the originals
do, whichever slots they stand in, and different ones for each head. Hence

    attention over the compact cache = attention over the text's slots, all others masked

Plans name slots of the text, from first[b] on, and the cache finds its own: `layout` shifts them by
gap[b] = first[b] - filled[b].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import CapacityError
from ..host_transfer import to_host, upload
from ..kernels.attention import AttentionPattern
from ..plan import Plan, Visible
from .kv_cache import KVCache, Reader, Slots, attend_hidden, written


class CompactCache(KVCache):
    """K and V for B rows of `slots` slots each, of texts of up to `reach` slots.

    Attributes:
        filled: [B] on the host: slots with copies.
        first: [B] on the host: the first slot of the text that stands after them.
    """

    by_row: ClassVar[tuple[str, ...]] = ("filled", "first", "holes")

    def __init__(self, source: KVCache, *, batch: int, slots: int, reach: int) -> None:
        """An empty cache for copies of `source`, with its shapes, dtype and devices."""
        super().__init__(
            layers=len(source.k),
            batch=batch,
            capacity=slots,
            kv_heads=[k.shape[2] for k in source.k],
            head_dim=[k.shape[3] for k in source.k],
            dtype=source.k[0].dtype,
            device=[k.device for k in source.k],
        )
        self.longest = reach
        self.filled = np.zeros(batch, dtype=np.int64)
        self.first = np.zeros(batch, dtype=np.int64)
        self.holes: list[Tensor | None] = [None] * len(self.k)  # per layer [B, N, K] bool: slots without a copy

    @property
    def gap(self) -> np.ndarray:
        """[B]: a slot's number in the text minus its number here, for text slots from `first` on."""
        result: np.ndarray = self.first - self.filled
        return result

    def fill(
        self,
        source: KVCache,
        rows: np.ndarray,
        chosen: Sequence[Tensor],
        first: np.ndarray,
        stop: np.ndarray,
        counts: np.ndarray | None = None,
    ) -> None:
        """Refills some rows with copies of chosen slots, then of the text's slots first[b] .. stop[b] - 1.

        Args:
            source: the cache of the whole text, with the same rows as this one.
            rows: [b] those that begin anew.
            chosen: of each layer [b, N, K] int64: slots of the text below first[b]; -1 is none. N may differ.
            first: [b].
            stop: [b].
            counts: [L, b] how many are chosen for each head, which stand first; None: reads `chosen` on the host.
        """
        last, lead = _extents(chosen) if counts is None else (counts, counts)
        filled = last.max(0)
        self.filled, self.first = self.filled.copy(), self.first.copy()
        self.filled[rows], self.first[rows] = filled, first
        top, every = int(filled.max(initial=0)), len(rows) == self.batch
        within = np.arange(top) < filled[:, None]
        with torch.inference_mode(False), torch.no_grad():
            for layer, slots in enumerate(chosen):
                wide = F.pad(slots[:, :top], (0, 0, 0, max(0, top - slots.shape[1])), value=-1)
                fresh = None
                if (lead[layer] < filled).any():
                    fresh = (wide < 0) & upload(within, wide.device)[..., None]
                where = torch.from_numpy(rows)
                if every or (fresh is None and self.holes[layer] is None):
                    self.holes[layer] = fresh
                else:
                    self.holes[layer] = written(self.holes[layer], where, fresh, self.batch)
                index, where = wide.clamp(min=0), upload(where, wide.device)
                self.k[layer][where, :top] = text_slots(source, "k", layer, index, where)
                self.v[layer][where, :top] = text_slots(source, "v", layer, index, where)
        start, behind = np.zeros_like(self.first), np.zeros_like(self.first)
        start[rows], behind[rows] = first, stop
        self.copy(source, start, behind)

    def copy(self, source: KVCache, start: np.ndarray, stop: np.ndarray) -> None:
        """Copies the text's slots start[b] .. stop[b] - 1, at or after `first`, from `source`, for all rows."""
        _copy_slots(source, np.zeros_like(start), self, self.gap, start, stop)

    def give(self, target: KVCache, start: np.ndarray, stop: np.ndarray) -> None:
        """Copies the text's slots start[b] .. stop[b] - 1, at or after `first`, to `target`."""
        _copy_slots(self, self.gap, target, np.zeros_like(start), start, stop)

    def layout(self, plan: Plan) -> Plan:
        gap = self.gap if plan.rows is None else self.gap[plan.on_host(plan.rows)]
        if plan.tokens.device.type == "cpu" and len(gap):
            top = int((plan.lengths - torch.from_numpy(gap)).amax())
            if top > self.capacity:
                raise CapacityError(f"the plan needs {top} slots, and the compact cache has {self.capacity}")
        if not gap.any():
            return plan
        shift = upload(gap, plan.tokens.device)
        same = int(gap[0]) if (gap == gap[0]).all() else None
        visible = plan.visible
        if visible.base is not None:
            visible = replace(visible, base=visible.base - shift)
        elif visible.dense is not None:
            visible = _shifted_mask(visible, shift, same)
        return replace(
            plan,
            positions=_shifted(plan.positions, shift),
            slots=_shifted(plan.slots, shift),
            visible=visible,
            lengths=plan.lengths - shift,
            uniform=None if same is None or plan.uniform is None else plan.uniform - same,
            span=None if same is None or plan.span is None else (plan.span[0] - same, plan.span[1] - same),
            stored=None if same is None or plan.stored is None else (plan.stored[0] - same, plan.stored[1] - same),
        )

    def reader(self, plan: Plan, rope: Any, device: torch.device) -> Reader | None:
        return _WithoutHoles(self.holes, plan.rows) if any(hole is not None for hole in self.holes) else None

    def move(self, source: Tensor, target: Tensor, rows: Tensor | None = None) -> None:
        gap = upload(self.gap, source.device)
        shift = gap if rows is None else gap[rows]
        super().move(_shifted(source, shift), _shifted(target, shift), rows)


@dataclass(frozen=True, slots=True)
class _WithoutHoles(Reader):
    """Attends to a compact cache some of whose slots have no copy for some heads."""

    holes: Sequence[Tensor | None]
    rows: Tensor | None

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        hole = self.holes[layer]
        if hole is None:
            hole = torch.zeros(k.shape[0], 0, 1, dtype=torch.bool, device=k.device)
        return attend_hidden(q, k, v, pattern, hole if self.rows is None else hole[self.rows.to(hole.device)])


def text_slots(source: KVCache, kind: str, layer: int, index: Tensor, rows: Tensor) -> Tensor:
    """K or V ("k", "v") of the slots `index` [b, N, K or 1] of `rows` [b], head by head -> [b, N, K, D]."""
    stored: Tensor = getattr(source, kind)[layer]
    index, rows = upload(index, stored.device), upload(rows, stored.device)[:, None, None]
    heads = torch.arange(stored.shape[2], device=stored.device)
    own = stored[rows, (index - source.offset).clamp(min=0), heads]
    if source.shared is None:
        return own
    common: Tensor = getattr(source.shared, kind)[layer]
    shared = common[torch.zeros_like(rows), index.clamp(max=source.offset - 1), heads]
    return torch.where((index < source.offset)[..., None], shared, own)


def text_keys(source: KVCache, layer: int, rows: Tensor, stop: int) -> Tensor:
    """The keys of the first `stop` slots of `rows` [b] -> [b, stop, K, D]."""
    own = source.k[layer][:, : max(0, stop - source.offset)]
    every = len(rows) == len(own) and bool((rows == torch.arange(len(rows), device=rows.device)).all())
    own = own if every else own[upload(rows, own.device)]
    if source.shared is None:
        return own
    common = source.shared.k[layer][:, : min(stop, source.offset)]
    return torch.cat((common.expand(len(rows), -1, -1, -1), own), 1)


def _copy_slots(
    source: KVCache, source_gap: np.ndarray, target: KVCache, gap: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> None:
    """Copies the text's slots start[b] .. stop[b] - 1 of each row from one cache to another."""
    count = stop - start
    most = int(count.max(initial=0))
    if most <= 0:
        return
    order, rows = np.arange(most), np.arange(len(count))
    real, where = order < count[:, None], start[:, None] + order
    read = np.where(real, where - source_gap[:, None], 0)[..., None]
    flat = target.flat_slots(torch.from_numpy(np.where(real, where - gap[:, None], -1)))
    indices: dict[torch.device, tuple[Tensor, ...]] = {}  # once for the layers of a device
    with torch.inference_mode(False), torch.no_grad():
        for kind in ("k", "v"):
            for layer, tensor in enumerate(getattr(target, kind)):
                if tensor.device not in indices:
                    indices[tensor.device] = tuple(upload(each, tensor.device) for each in (read, rows, flat))
                index, own, to = indices[tensor.device]
                values = text_slots(source, kind, layer, index, own)
                tensor.flatten(0, 1).index_copy_(0, to, values.flatten(0, 1))


def _extents(chosen: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """[L, b] each: the number of slots up to the last chosen one, and up to the first -1 of any head."""
    parts = {}
    for layer, slots in enumerate(chosen):
        real = slots >= 0
        order = torch.arange(1, slots.shape[1] + 1, device=slots.device)
        none = order.new_zeros(len(slots))
        last = torch.where(real.any(2), order, 0).amax(1) if slots.shape[1] else none
        parts[str(layer)] = torch.stack((last, real.all(2).long().cumprod(1).sum(1)))
    both = np.stack(list(to_host(parts).values()), 1)
    return both[0], both[1]


def _shifted(slots: Tensor, shift: Tensor) -> Tensor:
    return torch.where(slots < 0, -1, slots - shift[:, None])


def _shifted_mask(visible: Visible, shift: Tensor, same: int | None) -> Visible:
    """The mask over the slots of this cache; copied slots are visible to all queries."""
    if same is not None and visible.before >= same and visible.dense is not None:
        return Visible.mask(visible.dense, visible.before - same)
    dense = visible.from_first_slot().dense
    assert dense is not None, "it is a mask"
    order = torch.arange(dense.shape[-1], device=dense.device) + shift[:, None]
    inside = order < dense.shape[-1]
    index = order.clamp(max=dense.shape[-1] - 1)[:, None].expand(-1, dense.shape[1], -1)
    return Visible.mask(dense.gather(2, index) & inside[:, None])


class PartialCache(CompactCache):
    """K/V of the whole text, and a compact cache of the part that the model reads.

    Prompts are fed to the `whole` cache, densely. From then on, every forward reads and writes the compact one, and
    what is committed is copied to the whole cache, from which the compact one is filled again. `begun` says whether it
    has been filled.
    """

    by_row: ClassVar[tuple[str, ...]] = (*CompactCache.by_row, "whole")

    def __init__(self, whole: KVCache, *, slots: int) -> None:
        super().__init__(whole, batch=whole.batch, slots=slots, reach=whole.capacity)
        self.whole = whole
        self.begun = False

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.whole.nbytes

    def layout(self, plan: Plan) -> Plan:
        return super().layout(plan) if self.begun else plan

    def extent(self, plan: Plan) -> int:
        return super().extent(plan) if self.begun else self.whole.extent(plan)

    def slots(self, plan: Plan, *, in_parts: bool = False) -> Slots:
        return super().slots(plan, in_parts=in_parts) if self.begun else self.whole.slots(plan, in_parts=in_parts)

    def reader(self, plan: Plan, rope: Any, device: torch.device) -> Reader | None:
        return super().reader(plan, rope, device) if self.begun else None

    def put(self, rows: Tensor, other: KVCache) -> None:
        assert isinstance(other, PartialCache), "both are of one request's kind"
        super().put(rows, other)
        self.begun = self.begun or other.begun
