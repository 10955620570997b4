"""Copies K/V between the rows of a request and the model's prefix cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.caches.prefix_cache import Lease
from pardec.models.model import LanguageModel
from pardec.models.plan import TargetStates

from .batching import RowState


class PrefixReuse:
    """The live rows' leases of the prefix cache; does nothing if the model has no prefix cache.

    Attributes:
        length: [B] tokens of each row whose K/V were copied before its first forward.
    """

    def __init__(self, model: LanguageModel, cache: KVCache | None, rows: int) -> None:
        """`cache` has the K/V of text row b in its row b; if it is None or has conditions, nothing is reused."""
        self.model, self.cache = model, cache
        self.prefixes = None if cache is None or cache.copies > 1 or cache.shift is not None else model.prefix_cache
        self.length = np.zeros(rows, dtype=np.int64)
        self._leases: list[Lease | None] = [None] * rows

    def begin(self, at: int, tokens: np.ndarray, most: int, states: TargetStates | None = None) -> None:
        """Copies the longest stored prefix of `tokens`, at most `most` of them, to the slots of the row at index `at`.

        With `states`, only of what has these.
        """
        if self.prefixes is None or self.cache is None:
            return
        self._match_weights()
        lease = self._leases[at] = self.prefixes.begin(tokens, most, states)
        self.prefixes.load(lease, self.cache, at)
        self.length[at] = len(lease.path) * self.prefixes.block

    def followers(self, texts: Sequence[np.ndarray], most: np.ndarray, states: TargetStates | None) -> np.ndarray:
        """[B] bool: rows whose next block equals that of an earlier row, so that they can begin once it is stored."""
        result = np.zeros(len(texts), dtype=bool)
        if self.prefixes is not None:
            self._match_weights()
            missing = [self.prefixes.missing(*row, states) for row in zip(texts, most.tolist(), strict=True)]
            for at, key in enumerate(missing):
                result[at] = key is not None and key in missing[:at]
        return result

    def states(self, at: int, states: TargetStates) -> Tensor:
        """[length, S]: the states of the tokens that the row at index `at` has copied, at least one."""
        lease = self._leases[at]
        assert self.prefixes is not None, "it has copied some"
        assert lease is not None, "and leases them"
        return self.prefixes.states(lease, states)

    def store(self, at: int, tokens: np.ndarray, states: tuple[TargetStates, Tensor] | None = None) -> None:
        """Stores the complete blocks of `tokens`, whose K/V are in the first slots of the row at index `at`."""
        lease = self._leases[at]
        if self.prefixes is not None and self.cache is not None and lease is not None:
            self._match_weights()
            self.prefixes.extend(lease, tokens, self.cache, at, states)

    def leave(self, at: int, tokens: np.ndarray) -> None:
        """Called when the row at index `at` ends: stores its `tokens` like `store` and returns its lease."""
        self.store(at, tokens)
        self._release(at)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows; the caller updates the cache. If a row repeats, its first copy has the lease."""
        for at in set(range(len(self._leases))) - set(rows.tolist()):
            self._release(at)
        self.length = self.length[rows]
        first = np.unique(rows, return_index=True)[1].tolist()
        self._leases = [self._leases[at] if new in first else None for new, at in enumerate(rows.tolist())]

    def put(self, where: np.ndarray, other: PrefixReuse) -> None:
        """Replaces the live rows at `where` by the rows of `other`, and takes over the leases of these."""
        self.length = self.length.copy()
        self.length[where] = other.length
        for at, lease in zip(where.tolist(), other._leases, strict=True):
            self._release(at)
            self._leases[at] = lease
        other._leases = [None] * len(other._leases)

    def close(self) -> None:
        """Returns all leases."""
        for at in range(len(self._leases)):
            self._release(at)

    def _release(self, at: int) -> None:
        lease, self._leases[at] = self._leases[at], None
        if lease is not None and self.prefixes is not None:
            self.prefixes.release(lease)

    def _match_weights(self) -> None:
        if self.prefixes is not None:
            self.prefixes.match_weights(getattr(self.model, "weights_version", 0))


class DraftReuse(RowState):
    """Prefix reuse for a draft model with its own K/V; its blocks share the budget of the target's prefix cache."""

    per_row = ("stored",)

    def __init__(self, target: LanguageModel, model: LanguageModel, cache: KVCache, rows: int) -> None:
        self.prefixes, self.model, self.cache = target.prefix_cache, model, cache
        self.stored = np.zeros(rows, dtype=bool)  # [B] whether the row's prompt was stored

    def begin(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """[B]: how many tokens of each text had K/V in the prefix cache, copied to its row; never the last token."""
        lengths = np.zeros(len(texts), dtype=np.int64)
        for at, tokens in enumerate(texts):
            with self._lease(tokens, len(tokens) - 1) as lease:
                if lease is not None and self.prefixes is not None:
                    self.prefixes.load(lease, self.cache, at)
                    lengths[at] = len(lease.path) * self.prefixes.block
        return lengths

    def store(self, texts: Sequence[np.ndarray], lengths: np.ndarray) -> None:
        """Stores the first lengths[b] tokens of each text whose prompt is not stored yet, once all K/V are known."""
        for at in np.flatnonzero(~self.stored & (lengths > 0)).tolist():
            with self._lease(texts[at], int(lengths[at])) as lease:
                if lease is not None and self.prefixes is not None:
                    self.prefixes.extend(lease, texts[at][: lengths[at]], self.cache, at)
            self.stored[at] = True

    @contextmanager
    def _lease(self, tokens: np.ndarray, most: int) -> Iterator[Lease | None]:
        if self.prefixes is None:
            yield None
            return
        version = getattr(self.model, "weights_version", 0)
        lease = self.prefixes.begin_draft(self.model.decoder, version, tokens, most)
        try:
            yield lease
        finally:
            self.prefixes.release(lease)
