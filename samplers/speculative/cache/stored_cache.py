"""Shared by the caches that encode older K/V in fewer bytes: when K/V are encoded, and how deep drafts may be."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.kv_stores.cache import StoredCache
from pardec.models.kv_stores.contracts import Store
from pardec.models.kv_stores.groups import BITS
from pardec.models.model import LanguageModel

from ...traits import Reasons, Trait, Why
from ..contracts import Cache, DecodeContext


class StoredKV(Cache):
    """A row's K/V are exact until `chunk` of them have left the newest `residual`, which are then encoded together.

    A query at position p reads slot s encoded if s < G floor((p + 1 - R) / G), G the chunk and R the residual. Drafts
    that are `aligned` end before that changes: then each node reads what it would read in sequential decoding.
    """

    provides = frozenset({Trait.CHANGES_TARGET, Trait.ENCODES_KV})
    conflicts: ClassVar[Reasons] = {
        Trait.SHARED_BY_PROCESSES: Why(
            "{other} is shared by {kind}, and {me} encodes all heads in one process",
            "load it in one process, or decode without a cache after '@'",
            error=ModelError,
        )
    }
    aligned: bool

    @property
    def store(self) -> Store:
        """The codecs, and how many tokens stay exact."""
        raise NotImplementedError

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        return model.new_cache(rows, capacity, scratch=scratch, store=self.store)

    def max_depth(self, context: DecodeContext, remaining: np.ndarray, state: Any) -> np.ndarray:
        if not self.aligned:
            return remaining
        cache, store = _stored(context), self.store
        own = cache.own_lengths(context.text.length).reshape(cache.copies, -1)
        least = np.array([min(map(store.room, lengths)) for lengths in own.T.tolist()], dtype=np.int64)
        result: np.ndarray = np.minimum(remaining, least)
        return result

    def settle(self, context: DecodeContext, state: Any) -> None:
        _stored(context).settle(context.text.length)

    def require_bits(self, bits: int) -> None:
        """Raises SpecError for an unsupported number of bits; 16 stores the values unchanged."""
        if bits not in (*BITS, 16):
            raise SpecError(f"{self.registered[0]}: bits must be one of {', '.join(map(str, BITS))} or 16, got {bits}")


def _stored(context: DecodeContext) -> StoredCache:
    cache = context.cache
    assert isinstance(cache, StoredCache), "new_cache made it"
    return cache
