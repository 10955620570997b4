"""Adds to a drafting model's tree what followed the text's longest suffix elsewhere, in the text or a store of texts.

RASD: Retrieval-Augmented Speculative Decoding, https://arxiv.org/abs/2503.03434

    retrieve:  up to `branches` continuations of the longest suffix that occurs in the text or the store
    prune:     branches whose first token x has q(x) < least, q being the model's distribution behind the text
    fuse:      a continuation shares the model's nodes as long as both agree; its other nodes stand behind the siblings
               that the model has drafted, up to `nodes` in all

The nodes that most continuations share are added first.

Deviates from the paper: the row's text is searched like the store, and wins a tie; where the model drafts nothing,
nothing is pruned. Rounds with retrieved nodes do not count for a length controller.
Exact: greedy and distribution, with an exact acceptance: retrieved nodes are point masses, and the model's keep the
distributions that they were sampled from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from pardec.models.errors import PardecError
from pardec.models.hidden import Hidden
from pardec.models.model import LanguageModel

from ...limits import check_nodes
from ...registry import register
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ._fusion import FirstDistribution, fused
from ._history import PerRow
from ._nested import Nesting
from ._retrieval import Retrieval, Store, retrieved_tree
from ._store import read_texts
from ._tries import Node


@dataclass
class _Sources:
    """The state of one request."""

    model: Any  # the drafting model's state
    texts: PerRow[Retrieval]
    shape: FirstDistribution

    def failure(self) -> PardecError:
        """The error for logits of the drafting model that are not finite."""
        error: PardecError = self.model.failure()
        return error


@register(
    "rasd",
    stage="draft",
    paper="arXiv:2503.03434",
    exact="greedy",
    checked="reference:samplers.speculative.test_rasd.naive_continuations joint",
)
@dataclass(frozen=True)
class Rasd(Nesting):
    example: ClassVar[str] = 'rasd:model="model:name=...",store=texts.txt; shape, length and acceptance stand beside it'

    store: Annotated[str | None, "a file of texts to retrieve from, one a line; .jsonl: ids, too"] = None
    span: Annotated[int, "tokens of a continuation"] = 10
    branches: Annotated[int, "the most continuations of a round"] = 8
    suffix: Annotated[int, "the most tokens of the suffix that is searched"] = 8
    least: Annotated[float, "probability of a branch's first token, by the model, below which it is pruned"] = 0.01
    nodes: Annotated[int, "drafted tokens in all, beyond which nothing is added to the model's"] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("span", "branches", "suffix", "nodes", least=1)
        self.require("suffix", most=64)  # compared of every suffix of the store
        self.require("least", least=0, most=1)
        check_nodes("rasd", self.nodes)
        # Not a field: what is read of the store is no part of the sampler's identity.
        object.__setattr__(self, "_stores", WeakKeyDictionary[Any, Store]())

    def width(self, model: LanguageModel) -> int:
        return max(int(self._model.width(model)), self.nodes + 1)

    def start(self, context: DecodeContext) -> _Sources:
        assert context.sampler.shape is not None, "drafters with a model have a shape"
        shape = FirstDistribution(context.sampler.shape)
        inside = replace(context, sampler=replace(context.sampler, shape=shape))
        store = self._read(context.model)
        texts = PerRow(Retrieval(store, self.suffix) for _ in range(len(context.text)))
        return _Sources(self._model.start(inside), texts, shape)

    def _read(self, model: LanguageModel) -> Store | None:
        stores: WeakKeyDictionary[Any, Store] = vars(self)["_stores"]
        if self.store is None:
            return None
        if model.decoder not in stores:
            stores[model.decoder] = Store(read_texts("rasd", self.store, model), self.suffix)
        return stores[model.decoder]

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: _Sources) -> None:
        self._model.read_prompt(rows, hidden, context, state.model)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: _Sources) -> Draft:
        state.shape.first = None
        draft = self._model.propose(context, room, uniforms, state.model)
        text = context.text
        rows = list[list[Node]]()
        for at, retrieval in enumerate(state.texts.rows):
            retrieval.grow(text.row(at)[retrieval.text.length :].tolist())
            branches = retrieval.continuations(min(self.span, int(room[at])), self.branches)
            if branches and draft.sizes[at] > 1 and state.shape.first is not None:
                likely = state.shape.probs(at, [branch[0] for branch in branches])
                branches = [branch for branch, p in zip(branches, likely, strict=True) if p >= self.least]
            rows.append(retrieved_tree(branches, self.nodes))
        return fused(draft, rows, self.nodes)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Sources) -> None:
        self._model.observe(outcome, context, state.model)
