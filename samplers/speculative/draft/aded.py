"""Drafts a tree by random walks through trigram counts, which learn from every forward of the target.

Adaptive Draft-Verification for Efficient Large Language Model Decoding, https://arxiv.org/abs/2407.12021

    p(w | u, v) = M[u, v, w] / sum of M[u, v]
    draft:   roll-outs from the text's last two tokens; from a node, token w with a weight of
             p(w) (1 + explore sqrt(N) / (1 + n_w)), N the node's visits and n_w those of w
    kept:    the `nodes` visited nodes of the highest product of p along their path
    update:  M[u, v, w] + 1 for each committed token;  M[u, v] + p of the target's k likeliest after every node fed

The bonus of rarely visited tokens makes drafts diverse; without it (`explore=0`) they follow p alone.

Deviates from the paper: token w is drawn by its weight, where the paper takes the highest one; M begins with the row's
prompt, and may begin with a file of texts (`corpus`); with `decay`, what M knew of a pair fades when it occurs again.
Each row has a table of its own for one request. With `keep=true` all rows and requests that this sampler object decodes
with a model share one table.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from pardec.models.model import LanguageModel

from ...host_transfer import download
from ...limits import check_nodes
from ...registry import register
from ...traits import NONE, Trait
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from .text_history import PerRow
from .text_store import Node, best, read_texts, tree_draft

Pair = tuple[int, int]  # the last two tokens; -1 is before the first one


class Trigrams:
    """For each pair of tokens the weight of every token known to follow it."""

    def __init__(self, decay: float = 1.0) -> None:
        self.decay = decay  # multiplies a pair's weights whenever weights are added
        self.after: dict[Pair, dict[int, float]] = {}

    def learn(self, tokens: Sequence[int], start: int = 0) -> None:
        """Adds 1 for each token of a text, from index `start` on."""
        for at in range(start, len(tokens)):
            pair = tokens[at - 2] if at > 1 else -1, tokens[at - 1] if at else -1
            self.add(pair, ((tokens[at], 1.0),))

    def add(self, pair: Pair, weights: Iterable[tuple[int, float]]) -> None:
        """Adds the weights of these tokens after a pair."""
        known = self.after.setdefault(pair, {})
        if self.decay < 1:
            for token in known:
                known[token] *= self.decay
        for token, weight in weights:
            known[token] = known.get(token, 0.0) + weight

    def copy(self) -> Trigrams:
        """A copy of the table."""
        table = Trigrams(self.decay)
        table.after = {pair: dict(weights) for pair, weights in self.after.items()}
        return table


def last_pair(text: np.ndarray) -> Pair:
    """The last two tokens of a text [L].

    >>> last_pair(np.array([5, 6, 7])), last_pair(np.array([5]))
    ((6, 7), (-1, 5))
    """
    first, second = [-1, -1, *text[-2:].tolist()][-2:]
    return first, second


@dataclass(slots=True)
class _Branch:
    """A node of the search: its possible continuations, and how often roll-outs visited them."""

    index: int  # index among the nodes; 0: the text's last token
    pair: Pair
    reach: float  # product of the probabilities on the path
    tokens: list[int]
    probs: list[float]
    visits: list[int]
    total: int = 0
    children: dict[int, _Branch] = field(default_factory=dict)  # by index of `tokens`

    @staticmethod
    def of(table: Trigrams, index: int, pair: Pair, reach: float) -> _Branch:
        known = table.after.get(pair, {})
        mass = sum(known.values())
        tokens = list(known) if mass > 0 else []
        return _Branch(index, pair, reach, tokens, [known[token] / mass for token in tokens], [0] * len(tokens))

    def choose(self, u: float, explore: float) -> int:
        """The index of a token, by the inverse CDF of the uniform `u`."""
        bonus = explore * sqrt(self.total)
        weights = [p * (1 + bonus / (1 + n)) for p, n in zip(self.probs, self.visits, strict=True)]
        left = u * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(weights) - 1


def roll_out(table: Trigrams, pair: Pair, uniforms: np.ndarray, explore: float, most: int) -> list[Node]:
    """The `most` nodes of the highest reach that roll-outs visit, parents before children and siblings by reach.

    A roll-out goes from a node to one of its tokens in proportion to p (1 + explore sqrt(N) / (1 + n)), if n roll-outs
    took this token before, of N that passed the node.

    Args:
        uniforms: [depth, R] in (0, 1): one per step, for R roll-outs of `depth` tokens.
    """
    root = _Branch.of(table, 0, pair, 1.0)
    nodes: list[tuple[float, Node]] = []
    for steps in uniforms.T.tolist():
        here = root
        for depth, u in enumerate(steps, 1):
            if not here.tokens:
                break
            chosen = here.choose(u, explore)
            here.visits[chosen] += 1
            here.total += 1
            if chosen not in here.children:
                token, reach = here.tokens[chosen], here.reach * here.probs[chosen]
                nodes.append((reach, (token, here.index, depth)))
                here.children[chosen] = _Branch.of(table, len(nodes), (here.pair[1], token), reach)
            here = here.children[chosen]
    return best(nodes, most)


@register("aded", exact="greedy", checked="reference:reference.naive_aded.tree joint")
class Aded(Drafter):
    k: Annotated[int, "tokens of a roll-out, which is how deep the tree grows"] = 6
    nodes: Annotated[int, "most drafted tokens"] = 32
    rollouts: Annotated[int, "random walks per round"] = 32
    explore: Annotated[float, "weight of the bonus for rarely visited tokens"] = 0.5
    top: Annotated[int, "likeliest target tokens that are learned at each node; 0: none"] = 4
    decay: Annotated[float, "factor of a pair's weights when it occurs again"] = 1.0
    corpus: Annotated[str | None, "a file of texts that the table begins with, one per line; .jsonl: ids, too"] = None
    update: Annotated[bool, "learn while decoding; false: the table stays as it begins"] = True
    keep: Annotated[bool, "one table for all rows and requests of the sampler object; drafts then depend on them"] = (
        False
    )

    def __post_init__(self) -> None:
        self.require("k", "nodes", "rollouts", least=1)
        self.require("explore", "top", least=0)
        self.require("decay", least=0, most=1)
        check_nodes("aded", self.nodes)
        # Not fields: the tables are no part of the sampler's identity.
        object.__setattr__(self, "_begun", WeakKeyDictionary[Any, Trigrams]())
        object.__setattr__(self, "_shared", WeakKeyDictionary[Any, Trigrams]())

    def width(self, model: LanguageModel) -> int:
        return 1 + self.nodes

    @property
    def provides(self) -> frozenset[Trait]:
        return frozenset({Trait.KEEPS_DRAFTS}) if self.keep and self.update else NONE

    def start(self, context: DecodeContext) -> PerRow[Trigrams]:
        text, count = context.text, len(context.text)
        if not self.keep:
            tables = [self._first(context.model).copy() for _ in range(count)]
        else:
            shared: WeakKeyDictionary[Any, Trigrams] = vars(self)["_shared"]
            stack = context.model.decoder
            if stack not in shared:
                shared[stack] = self._first(context.model).copy()
            tables = [shared[stack]] * count
        for at, table in enumerate(tables):
            if self.update or not self.keep:  # each row's own prompt is part of what its table begins with
                table.learn(text.row(at).tolist())
        return PerRow(tables)

    def _first(self, model: LanguageModel) -> Trigrams:
        """The table of the corpus, which is read only once."""
        begun: WeakKeyDictionary[Any, Trigrams] = vars(self)["_begun"]
        if model.decoder not in begun:
            table = Trigrams(self.decay)
            for tokens in read_texts("aded", self.corpus, model) if self.corpus is not None else ():
                table.learn(tokens.tolist())
            begun[model.decoder] = table
        return begun[model.decoder]

    def propose(
        self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: PerRow[Trigrams]
    ) -> Draft:
        text = context.text
        positions = torch.from_numpy(text.length[:, None] + np.arange(self.k))  # drawn on the host
        draws = download(uniforms.noise(positions, "draft", self.rollouts))
        return tree_draft(
            text,
            [
                roll_out(table, last_pair(text.row(at)), draws[at, : remaining[at]], self.explore, self.nodes)
                for at, table in enumerate(state.rows)
            ],
        )

    def to_observe(self, outcome: RoundResult, state: PerRow[Trigrams]) -> Mapping[str, Tensor]:
        if not (self.update and self.top):
            return {}
        raw, draft = outcome.distributions.raw, outcome.draft
        likeliest = raw.softmax(-1).topk(min(self.top, raw.shape[-1]))
        return {
            "probs": likeliest.values,
            "ids": likeliest.indices,
            "tokens": draft.tokens,
            "parents": draft.parent,
        }

    def observe(self, outcome: RoundResult, context: DecodeContext, state: PerRow[Trigrams]) -> None:
        if not self.update:
            return
        text, draft = context.text, outcome.draft
        if self.top:
            read = outcome.read("probs", lambda: self.to_observe(outcome, state))
            probs, ids, tokens, parents = (read[name] for name in ("probs", "ids", "tokens", "parents"))
        for at, table in enumerate(state.rows):
            before = int(outcome.before[at])
            if self.top:
                above = last_pair(text.row(at)[:before])[0]
                for node in range(int(draft.sizes[at])):
                    above = int(tokens[at, parents[at, node]]) if node else above
                    weights = zip(ids[at, node].tolist(), probs[at, node].tolist(), strict=True)
                    table.add((above, int(tokens[at, node])), weights)
            table.learn(text.row(at).tolist(), before)
