"""Drafts what most often followed the text's last tokens, for as many tokens as the match is long.

SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications, https://arxiv.org/abs/2411.04975

    for each m, while the last m tokens occurred before:  walk on, p(path) = product of count(child) / count(node)
    likeliest first, at most min(k, factor m + offset) tokens, until p < least;  score = the sum of p
    the draft of the highest score; of equal ones that of the longest match

The score is the number of tokens expected to be accepted. Matches are searched in the row's text and, with `keep`, in
the texts that the sampler object has written before: the two suffix trees of the paper. A node of a tree is a sequence
of tokens, and the places where it occurs are counted when a walk needs them, from one list of places per token, so that
a store takes as many numbers as it has tokens. A text enters it when it is complete, with as many of the prompt's last
tokens as a match may have, and the oldest ones leave it.

With a store, the number of forwards tells something of what others wrote: give each tenant a sampler object, one that
`resolve` returns. `auto:copy=suffix` takes turns with a drafting model, by what each has gained.

Deviates from the authors' code: a text is kept with the prompt's last tokens, so that the beginning of an answer is
found, and not in its middle only; the end of the row's text, which is an occurrence of itself without a successor, is
not counted; of equally frequent tokens the last one is taken; nothing is copied into trees.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np

from ...limits import check_nodes
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, Uniforms
from .text_history import PerRow, chain
from .text_store import Node, tree_draft

_END = -1  # marks the end of each text of a store


class Places:
    """A growing sequence of tokens, and the places where each token occurs."""

    def __init__(self) -> None:
        self.ids = np.empty(64, dtype=np.int64)
        self.length = 0
        self.after: dict[int, list[int]] = {}  # token -> the index after each occurrence, in ascending order

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends `tokens`."""
        for token in tokens:
            if self.length == len(self.ids):
                self.ids = np.concatenate((self.ids, np.empty_like(self.ids)))
            self.ids[self.length] = token
            self.length += 1
            self.after.setdefault(token, []).append(self.length)

    def matches(self, text: np.ndarray, most: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (m, the indices after occurrences of the last m tokens of `text`); of equal indices the longest m."""
        last = int(text[-1])
        places = np.array(self.after.get(last, ()) if last >= 0 else (), dtype=np.int64)
        places = places[places < self.length]  # not the end of the row's own text
        for size in range(1, min(most, len(text)) + 1):
            if not len(places):
                return
            before = places - 1 - size
            further = places[:0]
            if size < min(most, len(text)):
                further = places[(before >= 0) & (self.ids[before] == text[-1 - size])]
            if len(further) < len(places):
                yield size, places
            places = further

    def continuations(self, places: np.ndarray) -> Iterator[tuple[float, int, np.ndarray]]:
        """(share, token, the indices after it), the most frequent token after these places first."""
        places = places[places < self.length]
        following = self.ids[places]
        tokens, last, counts = np.unique(following[::-1], return_index=True, return_counts=True)
        for at in np.lexsort((last, -counts)).tolist():
            if (token := int(tokens[at])) >= 0:
                yield counts[at] / len(places), token, places[following == token] + 1

    def walk(
        self, places: np.ndarray, budget: int, least: float, *, tree: bool, deepest: int
    ) -> tuple[float, list[Node]]:
        """The score and the up to `budget` likeliest nodes after these places: a chain, or a `tree`."""
        nodes: list[Node] = []
        score, number = 0.0, 0
        queue: list[tuple[float, int, Node, np.ndarray]] = [(-1.0, 0, (_END, -1, 0), places)]
        while queue and len(nodes) < budget:
            chance, _, (token, parent, depth), here = heappop(queue)
            if depth:
                nodes.append((token, parent, depth))
                score -= chance
            if depth >= deepest:
                continue
            for share, child, further in self.continuations(here):
                if -chance * share < least:
                    break
                number += 1
                heappush(queue, (chance * share, number, (child, len(nodes), depth + 1), further))
                if not tree:
                    break
        return score, nodes


class Store(Places):
    """Complete texts, at most `most` tokens of them: the oldest ones leave."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.sizes: deque[int] = deque()  # size of each text, its end token included

    def add(self, tokens: list[int]) -> None:
        """Adds a text. Where there are too many tokens, texts leave until a quarter is free."""
        if len(tokens) >= self.most or not tokens:
            return
        if self.length + len(tokens) >= self.most:
            start = 0
            while self.sizes and self.length - start + len(tokens) >= self.most * 3 / 4:
                start += self.sizes.popleft()
            kept = self.ids[start : self.length].tolist()
            self.length, self.after = 0, {}
            self.extend(kept)
        self.extend((*tokens, _END))
        self.sizes.append(len(tokens) + 1)


class _Texts(PerRow[Places]):
    """The places in each row's text, and the store that all rows share."""

    def __init__(self, rows: Iterable[Places], store: Store | None) -> None:
        super().__init__(rows)
        self.store = store


@register("suffix", exact="greedy", checked="reference:reference.naive_lookup.suffix joint")
class Suffix(Drafter):
    k: Annotated[int, "most tokens drafted"] = 32
    depth: Annotated[int, "longest match that is searched"] = 64
    factor: Annotated[float, "tokens drafted per token of the match"] = 1.0
    offset: Annotated[float, "tokens drafted in addition"] = 0.0
    least: Annotated[float, "least probability of a drafted token with those before it"] = 0.1
    tree: Annotated[bool, "the likeliest tokens of all paths; false: of one chain"] = False
    keep: Annotated[bool, "search the texts of the sampler object's earlier requests too; drafts depend on them"] = (
        False
    )
    stored: Annotated[int, "with keep: most tokens of earlier texts, in thousands"] = 1000

    def __post_init__(self) -> None:
        self.require("k", "depth", "stored", least=1)
        self.require("factor", "offset", "least", least=0)
        self.require("least", most=1)
        check_nodes("suffix", self.k)
        # Not a field: the texts are no part of the sampler's identity.
        object.__setattr__(self, "_stores", WeakKeyDictionary[Any, Store]())

    @property
    def provides(self) -> frozenset[Trait]:
        copies = frozenset({Trait.COPIES, Trait.DRAFTS_ONE_CHAIN, Trait.OBSERVES_TOKENS})
        chains = frozenset() if self.tree else copies
        return chains | {Trait.KEEPS_DRAFTS} if self.keep else chains

    def start(self, context: DecodeContext) -> _Texts:
        stores: WeakKeyDictionary[Any, Store] = vars(self)["_stores"]
        store = stores.setdefault(context.model.decoder, Store(1000 * self.stored)) if self.keep else None
        return _Texts((Places() for _ in range(len(context.text))), store)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: _Texts) -> Draft:
        text = context.text

        def guess(at: int, budget: int) -> list[Node]:
            return self.guess(text.row(at), state.rows[at], state.store, budget)

        if self.tree:
            return tree_draft(text, [guess(at, int(remaining[at])) for at in range(len(text))])
        return chain(
            text,
            self.k,
            remaining,
            lambda at, budget: np.array([token for token, _, _ in guess(at, budget)], dtype=int),
        )

    def guess(self, text: np.ndarray, own: Places, store: Store | None, remaining: int) -> list[Node]:
        """The nodes of one row's draft after `text` [L], to which its `own` places are extended.

        None is deeper than the `remaining` tokens of the row.
        """
        own.extend(text[own.length :].tolist())
        found = [(size, -order, places, among) for order, among in enumerate((own, store)) if among is not None
                 for size, places in among.matches(text, self.depth)]  # fmt: skip
        best, drafted = 0.0, list[Node]()
        for size, _, places, among in sorted(found, key=lambda match: match[:2], reverse=True):
            budget = min(self.k, int(self.factor * size + self.offset))
            if best >= budget:  # a score is at most the number of tokens
                break
            score, nodes = among.walk(places, budget, self.least, tree=self.tree, deepest=remaining)
            if score > best:
                best, drafted = score, nodes
        return drafted

    def finish(self, rows: np.ndarray, context: DecodeContext, state: _Texts) -> None:
        text, store = context.text, state.store
        if store is None:
            return
        for at in rows.tolist():
            start = max(int(text.prompt[at]) - self.depth, 0)
            store.add(text.host[at, start : text.length[at]].tolist())
