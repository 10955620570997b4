"""Drafts with the target itself, which attends to a part of its K/V.

TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative Decoding,
https://arxiv.org/abs/2404.11912

    x_i ~ p'(. | text, x_1 .. x_(i-1)),  i = 1 .. k,  p' the target that sees the x and the slots that `read` chooses

`read` is a cache of an autoregressive spec: streaming, retrieval, and others. The slots that it chooses are copied to a
compact cache; after every round the verify forward's keys and values of the committed tokens replace those that were
made while drafting.

A draft step reads all weights and the budget's keys and values; the verify forward reads all keys and values. Drafting
pays off where these outweigh the weights: for long texts.
Exact: greedy and distribution, with an exact acceptance, whichever cache drafts.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.model import LanguageModel

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from ..sparse_kv import (
    COPIES_KV,
    FINDS_KV,
    READS_PART,
    PerQueryAttention,
    PerQueryDraftState,
    SparseDraftState,
    any_sparse_attention_of,
)

_State = SparseDraftState | PerQueryDraftState


@register("sparsekv", exact="greedy", checked="joint")
class SparseKV(Drafter):
    provides = frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (4, 2, 6)}
    _attention: ClassVar[Any]

    read: Annotated[str, 'spec of the cache that drafts, quoted: "retrieval:budget=512" or "streaming:window=496"'] = (
        "retrieval"
    )
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 4

    def __post_init__(self) -> None:
        self.require("k", least=1)
        object.__setattr__(
            self, "_attention", any_sparse_attention_of(self.read, "sparsekv")
        )  # no field: it follows from the spec

    @property
    def last_queries(self) -> int:
        return int(self._attention.last_queries)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """An upper bound of a draft step's cost: all weights are read."""
        return 1.0

    @property
    def requires(self) -> Reasons:
        return {Trait.PLAIN_DECODER: READS_PART}

    @property
    def conflicts(self) -> Reasons:
        if not isinstance(self._attention, PerQueryAttention):
            return {Trait.ENCODES_KV: COPIES_KV, Trait.MOVES_KV: FINDS_KV}
        read = repr(self.read).replace("{", "{{").replace("}", "}}")
        own = f"{{me}}: {read} reads the target's own cache, which {{other!r}} replaces"
        return {
            Trait.ENCODES_KV: COPIES_KV,
            Trait.CHANGES_TARGET: Why(own, "leave one of them out, or draft through retrieval"),
        }

    def start(self, context: DecodeContext) -> _State:
        state = PerQueryDraftState if isinstance(self._attention, PerQueryAttention) else SparseDraftState
        return state(context, self._attention, self.k)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: _State) -> Draft:
        return state.draft(self.k, remaining, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _State) -> None:
        state.follow()
