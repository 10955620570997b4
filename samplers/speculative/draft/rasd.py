"""Adds to a draft model's tree the tokens that followed the longest suffix elsewhere in the text or a text store.

RASD: Retrieval-Augmented Speculative Decoding, https://arxiv.org/abs/2503.03434

    retrieve:  up to `branches` continuations of the longest suffix that occurs in the text or the store
    prune:     branches whose first token x has q(x) < least, q being the model's distribution after the text
    fuse:      a continuation shares the model's nodes as long as both agree; its other nodes stand after the siblings
               that the model has drafted, up to `nodes` in all

The nodes that most continuations share are added first.

Deviates from the paper: the row's text is searched like the store, and wins a tie; where the model drafts nothing,
nothing is pruned. Rounds with retrieved nodes do not count for a length controller.
Exact: greedy and distribution, with an exact acceptance: retrieved nodes are point masses, and the model's keep the
distributions that they were sampled from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import PardecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden

from ...host_transfer import download, upload
from ...limits import check_nodes
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, RoundResult, Shape, SubsetLogits, Uniforms
from .nested_drafter import Nesting
from .text_history import PerRow, SuffixIndex
from .text_store import Node, best, read_texts


class FirstDistribution(Shape):
    """A shape that remembers the drafting model's distribution after the text's last token; for one request."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.first: SubsetLogits | None = None  # [B, 1, V or N]; None: nothing was drafted in this round

    @property
    def provides(self) -> frozenset[Trait]:
        return self.shape.provides

    @property
    def fixed_depth(self) -> int | None:
        return self.shape.fixed_depth

    def width(self, k: int) -> int:
        return self.shape.width(k)

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        return self.shape.grow(_Watched(draft_model, self), context, budget, uniforms, context.state(self.shape))

    def probs(self, at: int, tokens: list[int]) -> list[float]:
        """The probability of each of these tokens after node 0 of the row at index `at`."""
        assert self.first is not None, "a model has drafted"
        probs, ids = self.first.logits[at, 0].softmax(-1), self.first.ids
        wanted = upload(torch.tensor(tokens, dtype=torch.int64), probs.device)
        if ids is None:
            inside: list[float] = probs[wanted].tolist()
            return inside
        same = wanted[:, None] == ids
        inside = torch.where(same, probs, 0).sum(1).tolist()
        return inside


class _Watched(DraftModel):
    """A drafting model whose first logits are recorded."""

    def __init__(self, model: DraftModel, record: FirstDistribution) -> None:
        self.model, self.record = model, record

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        return self._recorded(SubsetLogits(self.model.forward(draft, nodes))).logits

    def forward_subset(self, draft: Draft, nodes: Tensor) -> SubsetLogits:
        return self._recorded(self.model.forward_subset(draft, nodes))

    def prune(self, nodes: Tensor) -> None:
        self.model.prune(nodes)

    def acceptance(self) -> Tensor | None:
        return self.model.acceptance()

    def _recorded(self, over: SubsetLogits) -> SubsetLogits:
        self.record.first = self.record.first or over
        return over


def fused(draft: Draft, rows: Sequence[Sequence[Node]], most: int) -> Draft:
    """`draft` followed by the nodes of each row's tree that it lacks, up to `most` nodes after node 0.

    A path of a tree is followed in the draft as far as both agree; what goes on from there are point masses, after the
    siblings that the model has drafted. So these keep the distributions that they were sampled from. A draft that has
    more nodes already stays as it is.
    """
    tokens, parents, depths = (download(each) for each in (draft.tokens, draft.parent, draft.depth))
    tested = download(draft.tested)
    more: list[list[Node]] = []
    for at, nodes in enumerate(rows):
        size = int(draft.sizes[at])
        index = {0: 0}  # tree node -> its index in the draft
        child: dict[tuple[int, int], int] = {}
        for node in np.flatnonzero(tested[at]).tolist():
            child.setdefault((int(parents[at, node]), int(tokens[at, node])), node)
        own: list[Node] = []
        for number, (token, parent, depth) in enumerate(nodes, 1):
            if parent not in index:
                continue
            above = index[parent]
            if (above, token) not in child:
                if size - 1 + len(own) >= most:
                    continue
                child[above, token] = size + len(own)
                own.append((token, above, depth))
            index[number] = child[above, token]
        more.append(own)
    if not any(more):
        return draft
    sizes = draft.sizes + np.array([len(own) for own in more])
    width = max(int(sizes.max()), draft.width)
    table = np.zeros((3, len(rows), width), dtype=np.int64)
    table[:, :, : draft.width] = tokens, parents, depths
    added = np.zeros((len(rows), width), dtype=bool)
    for at, own in enumerate(more):
        if own:
            span = slice(int(draft.sizes[at]), int(sizes[at]))
            table[:, at, span], added[at, span] = np.array(own).T, True
    table[1:, np.arange(width) >= sizes[:, None]] = 0
    return _extended(draft, sizes, torch.from_numpy(table), torch.from_numpy(added))


def _extended(draft: Draft, sizes: np.ndarray, table: Tensor, added: Tensor) -> Draft:
    """`draft` with the tokens, parents and depths of `table` [3, B, T], the `added` nodes [B, T] being point masses."""
    device = draft.tokens.device
    table, added = table.to(device), added.to(device)
    extra = table.shape[2] - draft.width

    def wide(value: Tensor) -> Tensor:
        return pad(value.expand(len(sizes), -1), (0, extra))

    point = None
    if draft.q is not None:
        point = added if draft.is_point_mass is None else added | wide(draft.is_point_mass)
    return replace(
        draft,
        tokens=table[0],
        sizes=sizes,
        parents=table[1],
        depths=table[2],
        levels=int(table[2].max()),
        verify=None if draft.verify is None else added | wide(draft.verify),
        q=None if draft.q is None else pad(draft.q, (0, 0, 0, extra)),
        is_point_mass=point,
        ignores_length_controller=download(added.any(1)),
    )


_END = -1  # marks the end of each text of a store


class Store:
    """Texts by their suffixes, sorted by the first tokens (a suffix array)."""

    def __init__(self, texts: Sequence[np.ndarray], most: int) -> None:
        """`most`: how many tokens of a suffix are compared."""
        self.most = most
        ends = np.full(1, _END, dtype=np.int64)
        parts = [part for text in texts for part in (text, ends)]
        ids = np.concatenate([*parts, np.full(most, _END, dtype=np.int64)])
        windows = np.lib.stride_tricks.sliding_window_view(ids, most)[: len(ids) - most]
        self.ids = ids
        self.order = np.lexsort(windows.T[::-1]).tolist() if len(windows) else []

    def find(self, suffix: tuple[int, ...]) -> list[int]:
        """The indices after each occurrence of `suffix`, of at most `most` tokens."""
        size = len(suffix)

        def key(start: int) -> tuple[int, ...]:
            return tuple(self.ids[start : start + size].tolist())

        first = bisect_left(self.order, suffix, key=key)
        last = bisect_right(self.order, suffix, lo=first, key=key)
        return sorted(start + size for start in self.order[first:last])

    def continuation(self, start: int, count: int) -> list[int]:
        """Up to `count` tokens from `start` on, within one text."""
        tokens: list[int] = self.ids[start : start + count].tolist()
        return tokens[: tokens.index(_END)] if _END in tokens else tokens


class Retrieval:
    """The continuations of the longest suffix of one row's text, in the row and in a store."""

    def __init__(self, store: Store | None, longest: int) -> None:
        self.store, self.longest = store, longest
        self.text = SuffixIndex()

    def extend(self, tokens: list[int]) -> None:
        """Appends `tokens` to the text."""
        self.text.extend(tokens)

    def continuations(self, count: int, most: int) -> list[list[int]]:
        """At most `most` continuations, of up to `count` tokens, of the longest suffix that has any; the row's first.

        Later occurrences in the row come before earlier ones.
        """
        text, common = self.text.text[: self.text.length], self.text.common[: self.text.length]
        own = min(int(common.max(initial=0)), self.longest)
        for size in range(min(self.longest, len(text)), 0, -1):
            starts = np.flatnonzero(common >= size)[::-1].tolist() if size <= own else []
            matches = [text[start : start + count].tolist() for start in starts]
            if self.store is not None:
                stored = self.store.find(tuple(text[-size:].tolist()))
                matches += [self.store.continuation(start, count) for start in stored]
            if matches := [tokens for tokens in matches if tokens]:  # an occurrence at a text's end has no continuation
                return matches[:most]
        return []


def retrieved_tree(continuations: Sequence[Sequence[int]], most: int) -> list[Node]:
    """The `most` nodes of the tree of `continuations` that most of them share; earlier continuations first on ties.

    >>> retrieved_tree([[5, 6], [5, 7], [4]], 3)
    [(5, 0, 1), (6, 1, 2), (7, 1, 2)]
    """
    counts: list[int] = []
    index: dict[Node, int] = {}  # in the order of first occurrence, which has parents first
    for continuation in continuations:
        parent = 0
        for depth, token in enumerate(continuation, 1):
            at = index.setdefault((token, parent, depth), len(counts))
            if at == len(counts):
                counts.append(0)
            counts[at] += 1
            parent = at + 1
    return best([(float(count), node) for count, node in zip(counts, index, strict=True)], most)


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


@register("rasd", exact="greedy", checked="reference:samplers.speculative.test_rasd.naive_continuations joint")
class Rasd(Nesting):
    example: ClassVar[str] = 'rasd:model="model:name=...",store=texts.txt; add shape, length and acceptance with +'

    store: Annotated[str | None, "a file of texts to retrieve from, one per line; .jsonl: ids, too"] = None
    span: Annotated[int, "tokens per continuation"] = 10
    branches: Annotated[int, "most continuations per round"] = 8
    suffix: Annotated[int, "most tokens of the searched suffix"] = 8
    least: Annotated[
        float, "least probability of a branch's first token by the draft model; other branches are pruned"
    ] = 0.01
    nodes: Annotated[int, "most drafted tokens; the model's count first"] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("span", "branches", "suffix", "nodes", least=1)
        self.require("suffix", most=64)  # compared of every suffix of the store
        self.require("least", least=0, most=1)
        check_nodes("rasd", self.nodes)
        # Not a field: the content of the store is no part of the sampler's identity.
        object.__setattr__(self, "_stores", WeakKeyDictionary[Any, Store]())

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.ADDS_BRANCHES}

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

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: _Sources) -> Draft:
        state.shape.first = None
        draft = self._model.propose(context, remaining, uniforms, state.model)
        text = context.text
        rows = list[list[Node]]()
        for at, retrieval in enumerate(state.texts.rows):
            retrieval.extend(text.row(at)[retrieval.text.length :].tolist())
            branches = retrieval.continuations(min(self.span, int(remaining[at])), self.branches)
            if branches and draft.sizes[at] > 1 and state.shape.first is not None:
                likely = state.shape.probs(at, [branch[0] for branch in branches])
                branches = [branch for branch, p in zip(branches, likely, strict=True) if p >= self.least]
            rows.append(retrieved_tree(branches, self.nodes))
        return fused(draft, rows, self.nodes)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Sources) -> None:
        self._model.observe(outcome, context, state.model)
