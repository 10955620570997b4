"""Sparse attention: chooses the committed slots that the target attends to, per layer and key head.

It is used in two places. As the cache of a spec it applies to every forward and changes the target's predictions. In
a drafter it applies only to drafting forwards, and the verify forward reads all slots.

    chosen[l][b, j, h] = slots of the text,  after them the text from first[b] on     (`SparseAttention.choose`)

Either way a `CompactCache` has copies of the chosen slots, which are chosen anew every `refresh` rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pardec.models.caches.compact_cache import CompactCache, PartialCache
from pardec.models.caches.kv_cache import KVCache
from pardec.models.caches.label_channels import LabelCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel

from ..host_transfer import upload
from ..spec import parse
from ..spec_values import build_method
from ..traits import Reasons, Trait, Why
from .contracts import Cache, DecodeContext
from .draft_model import DraftModelState

# Reasons for caches and drafters that read part of a text's K/V.
READS_PART = Why("{me}: {other} cannot read a part of its K/V: {kind}", "decode without {me}", error=ModelError)
LETS_GO = Why("{me}: {other} with skip=search feeds tokens again that this cache has evicted", "write skip=uniform")
COPIES_KV = Why(
    "{me} copies keys and values of the text, which {other!r} stores encoded",
    "leave the cache out, or draft with model, eagle or lookup",
)
FINDS_KV = Why(
    "{me} copies keys and values by their place in the text, and {other!r} stores them elsewhere",
    "leave one of them out",
)
_NO_QUERIES = Why(
    "{me} chooses by the target's attention queries, which {other} does not return",
    "draft with model, eagle, medusa or lookup, or use the cache streaming",
)


@dataclass(frozen=True, eq=False)
class CommittedSlots:
    """The committed slots that sparse attention chooses from."""

    cache: KVCache  # K/V of the whole text
    rows: np.ndarray  # [b] the cache rows to choose for
    length: np.ndarray  # [b] their committed slots
    queries: tuple[Tensor, ...]  # [b, n, H, D] per layer: see `Stage.last_queries`; () if that is 0

    @property
    def layers(self) -> int:
        """The number of layers L."""
        return len(self.cache.k)


@dataclass(frozen=True, eq=False)
class Choice:
    """The slots that the target attends to."""

    chosen: Sequence[Tensor]  # per layer [b, N, K] int64 slots below first[b], -1: none; best in text order
    first: np.ndarray  # [b] all slots from here on are attended to as well
    counts: np.ndarray | None = None  # [L, b] number of slots in `chosen`, which come before every -1; None: unknown


class SparseAttention(Cache):
    """Chooses visible slots. A subclass is a frozen dataclass with `choose`, `most`, and optionally a field `refresh`.

    As a cache it declares `relaxed`; while it chooses all slots, its results equal those without a cache stage.
    """

    refresh: int = 1

    @property
    def most(self) -> int:
        """The most slots that `choose` leaves visible, those from `first` on included."""
        raise NotImplementedError

    def choose(self, slots: CommittedSlots) -> Choice:
        """Chooses the visible ones among the committed slots."""
        raise NotImplementedError

    # --- as a cache ---

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.MOVES_KV}

    @property
    def requires(self) -> Reasons:
        return {Trait.PLAIN_DECODER: READS_PART}

    @property
    def conflicts(self) -> Reasons:
        chosen = {Trait.SPLITS_TARGET: _NO_QUERIES} if self.last_queries else {}
        return {Trait.FEEDS_TEXT_AGAIN: LETS_GO, **chosen}

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        whole = model.new_cache(rows, capacity, scratch=scratch, captured=False)
        nodes = scratch + 1
        return PartialCache(whole, slots=min(self.most + (self.refresh + 1) * nodes, whole.capacity))

    def start(self, context: DecodeContext) -> Any:
        return self.refresh_state(len(context.text))

    def settle(self, context: DecodeContext, state: Any) -> None:
        cache = context.cache
        assert isinstance(cache, PartialCache), "new_cache made it"
        length = context.text.length - 1
        if cache.begun:
            cache.give(cache.whole, state.copied, length)
        cache.begun = True
        self.refresh_rows(cache, cache.whole, context, state)
        state.copied = length

    # --- also for drafters ---

    def refresh_state(self, rows: int) -> RefreshState:
        """The initial state of `rows` rows, all of which are due to be filled."""
        return RefreshState(np.full(rows, self.refresh), np.zeros(rows, dtype=np.int64))

    def refresh_rows(
        self, cache: CompactCache, source: KVCache, context: DecodeContext, state: RefreshState
    ) -> np.ndarray:
        """Fills the rows of `cache` that are due from `source`; returns [B] bool: the rows filled."""
        state.rounds = state.rounds + 1
        due: np.ndarray = state.rounds > self.refresh
        rows = np.flatnonzero(due)
        if len(rows):
            length = context.text.length[rows] - 1
            queries = tuple(q[upload(rows, q.device)] for q in context.queries())
            choice = self.choose_again(CommittedSlots(source, rows, length, queries), state)
            cache.fill(source, rows, choice.chosen, choice.first, length, choice.counts)
            state.rounds = np.where(due, 1, state.rounds)
        return due

    def choose_again(self, slots: CommittedSlots, state: RefreshState) -> Choice:
        """`choose` for rows that are due; a subclass may use what `state` has recorded of earlier choices."""
        return self.choose(slots)


class PerQueryAttention(Cache):
    """Sparse attention that chooses slots per query by key labels; reads the target's cache without copying it."""

    def view(self, model: LanguageModel, cache: KVCache) -> LabelCache:
        """A view of the cache's storage that is read by this choice of slots."""
        raise NotImplementedError

    def calibrate(self, view: LabelCache, context: DecodeContext) -> None:
        """Called after each round's commit: sets the view's labels if it has none."""
        raise NotImplementedError


@dataclass
class RefreshState:
    """How long ago each row was filled, and how much of its text has been copied."""

    rounds: np.ndarray  # [B] rounds since the last fill, that round included
    copied: np.ndarray  # [B] slots of the text that both caches have


def sparse_attention_of(text: str, name: str) -> SparseAttention:
    """The sparse attention of the spec `text`, a parameter of the method `name`. Raises SpecError for other specs."""
    attention = any_sparse_attention_of(text, name)
    if isinstance(attention, PerQueryAttention):
        raise SpecError(
            f"{name}: {text!r} chooses slots per query and has no compact cache", 'write read="retrieval:budget=512"'
        )
    return attention


def any_sparse_attention_of(text: str, name: str) -> SparseAttention | PerQueryAttention:
    """Like `sparse_attention_of`, for methods that also accept sparse attention per query."""
    spec = parse(text)
    built = [build_method(part, "ar") for part in spec.every]
    if len(built) != 1 or not isinstance(built[0], SparseAttention | PerQueryAttention):
        raise SpecError(
            f"{name}: read must be the spec of one sparse cache, got {text!r}",
            hint=f'write {name}:read="retrieval:budget=512" or read="streaming:window=496"',
        )
    return built[0]


class SparseDraftState(DraftModelState):
    """The target as a drafter, with a compact cache of chosen slots."""

    per_row = ("refresh_state", "cache")
    cache: CompactCache

    def __init__(self, context: DecodeContext, attention: SparseAttention, depth: int) -> None:
        rows, reach = len(context.text), context.cache.reach
        most = attention.most + attention.refresh * (depth + 1) + context.scratch + 1
        super().__init__(
            context, context.model, CompactCache(context.cache, batch=rows, slots=min(most, reach), reach=reach)
        )
        self.attention = attention
        self.refresh_state = attention.refresh_state(rows)

    def follow(self) -> None:
        """Called after each round: copies the target's K/V of committed tokens."""
        length, refresh_state = self.context.text.length - 1, self.refresh_state
        due = self.attention.refresh_rows(self.cache, self.context.cache, self.context, refresh_state)
        self.cache.copy(self.context.cache, np.where(due, length, refresh_state.copied), length)
        refresh_state.copied = length


class PerQueryDraftState(DraftModelState):
    """The target as a drafter on its own cache, restricted to the slots chosen for each query."""

    per_row = ("labels",)  # the storage is the target's

    def __init__(self, context: DecodeContext, attention: PerQueryAttention, depth: int) -> None:
        self.attention, self.view = attention, attention.view(context.model, context.cache)
        super().__init__(context, context.model, self.view)

    def follow(self) -> None:
        """Called after each round: sets the view's labels if it has none."""
        self.attention.calibrate(self.view, self.context)

    @property
    def labels(self) -> tuple[Tensor, ...] | None:
        """The view's labels, [B, K, P] per layer; None: not set yet."""
        return None if self.view.labels is None else tuple(self.view.labels)

    @labels.setter
    def labels(self, labels: tuple[Tensor, ...] | None) -> None:
        self.view.labels = None if labels is None else list(labels)

    def _begin(self) -> None:
        self.view.share(self.context.cache)
        super()._begin()
