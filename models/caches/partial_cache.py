"""A cache for partial reading: K/V of the whole text, and a compact cache of the part that the model reads.

Prompts are fed to the whole cache, densely. From then on, every forward reads and writes the compact one, and what is
committed is copied to the whole cache, from which the compact one is filled again.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..plan import Plan
from .compact_cache import CompactCache
from .kv_cache import KVCache, Slots
from .readers import Reader


class PartialCache(CompactCache):
    """The compact cache, and the `whole` one; `begun` says whether the compact one has been filled."""

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
