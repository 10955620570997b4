"""Builds a graph of drafts from statistics of a sampler's commits: how often each state follows another.

Structuring The Future: Diffusion LLM Speculative Decoding via Calibrated Draft Graphs (Spiffy),
https://arxiv.org/abs/2509.18085

    graph of D nodes = argmax sum over its nodes q of (count(q) + sum over its nodes p one step before q of count(p))

count(q) is how often, over a few samples, what the sampler committed in the steps after a forward was q, by the ranks
of that forward. Nodes are added greedily: each time the state that adds the most, among those one step after a node or
the row. The paper publishes no code, and how it searches is not known. With `parents=False` only count(q) is summed:
the second sum prefers states after the most frequent one, however rare they are themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import download
from ..contracts import Branch, Hypotheses
from .draft_sets import Commit, Node, key, text_of

State = tuple[int, frozenset[Commit]]  # number of steps from the row, and their commits


@dataclass(eq=False)
class _View:
    """The ranks in one forward's proposal, and the tokens committed since."""

    ranks: dict[int, int]  # position -> its rank, for positions open after the commits
    tokens: dict[int, list[int]]  # position -> its tokens, the likeliest first
    committed: frozenset[Commit] = frozenset()
    steps: int = 0


@dataclass(frozen=True, eq=False)
class StepCounts(Branch):
    """Counts the states that rows reach; drafts nothing and changes no token.

    `MaskedSampler.branch` of the sampler to be observed, at temperature 0.
    """

    steps: int = 4  # how many steps after a forward are counted
    positions: int = 8  # how many ranks of positions are counted
    tokens: int = 2  # how many ranks of tokens are counted
    counts: Counter[State] = field(default_factory=Counter)
    _views: dict[int, list[_View]] = field(default_factory=dict)

    @property
    def depths(self) -> tuple[int, ...]:
        return (0,)

    def survivors(self, hypotheses: Hypotheses) -> Tensor:
        canvas, proposal = hypotheses.canvas, hypotheses.proposal
        chosen = download(hypotheses.chosen & canvas.eligible)
        tokens, eligible = download(hypotheses.tokens), download(proposal.eligible)
        order = download(proposal.score.argsort(dim=1, descending=True, stable=True))
        for at, row in enumerate(canvas.rows.tolist()):
            columns = np.flatnonzero(chosen[at])
            positions = canvas.window_host[at]
            new = {int(positions[column]): int(tokens[at, column]) for column in columns}
            views = [view for view in self._views.get(row, []) if self._count(view, new)]
            rest = [column for column in order[at] if eligible[at, column] and not chosen[at, column]][: self.positions]
            if rest:
                logits = proposal.evidence.distribution.logits_at(at * chosen.shape[1] + np.array(rest))
                likeliest = logits.topk(min(self.tokens, logits.shape[1]), dim=1).indices.tolist()
                names = [int(positions[column]) for column in rest]
                ranks = {position: rank for rank, position in enumerate(names)}
                views.append(_View(ranks, dict(zip(names, likeliest, strict=True))))
            self._views[row] = views
        return torch.arange(len(canvas), device=canvas.tokens.device)

    def _count(self, view: _View, new: Mapping[int, int]) -> bool:
        """Counts the state after the tokens `new`; returns False if it is not a counted state, or is the last one."""
        if not all(position in view.ranks and token in view.tokens[position] for position, token in new.items()):
            return False
        commits = {(view.ranks[at], view.tokens[at].index(token)) for at, token in new.items()}
        view.committed, view.steps = view.committed | commits, view.steps + 1
        self.counts[view.steps, view.committed] += 1
        return view.steps < self.steps

    def forget(self) -> None:
        """Called between requests: forgets the rows of the last request."""
        self._views.clear()


def draft_graph(counts: Mapping[State, int], drafts: int, *, parents: bool = True) -> str:
    """The best graph of at most `drafts` nodes by the counts, as text for `freedave:graph=`.

    `parents` says whether a node also counts what those before it do. Raises SpecError for counts of no state, and
    fewer than one draft.
    """
    if drafts < 1 or not counts:
        raise SpecError(
            f"a draft graph needs drafts >= 1 and counted states, got drafts={drafts} and {len(counts)} states",
            hint="count the steps of more samples",
        )
    graph: dict[State, Node] = {}
    while len(graph) < drafts:
        gains = {state: _gain(state, graph, counts, parents) for state in counts if state not in graph}
        gains = {state: gain for state, gain in gains.items() if gain}
        if not gains:
            break
        state = min(gains, key=lambda each: (-gains[each], each[0], sorted(each[1])))
        parent = next((node for other, node in graph.items() if _leads(other, state)), ())
        graph[state] = (*parent, tuple(sorted(state[1] - key(parent))))
    return text_of(sorted(graph.values(), key=lambda node: (len(node), node)))


def _leads(one: State, other: State) -> bool:
    return other[0] == one[0] + 1 and one[1] < other[1]


def _gain(state: State, graph: Mapping[State, Node], counts: Mapping[State, int], parents: bool) -> int:
    """The gain from adding `state`; 0 if neither the row nor a node leads to it."""
    before = [other for other in graph if _leads(other, state)]
    if state[0] > 1 and not before:
        return 0
    if not parents:
        return counts[state]
    children = sum(_leads(state, other) for other in graph)
    return counts[state] * (1 + children) + sum(counts[other] for other in before)
