"""Weights of the tokens that follow each pair of tokens, and roll-outs through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from ._tries import Node, best

Pair = tuple[int, int]  # the last two tokens; -1 is before the first one


class Trigrams:
    """For each pair of tokens the weight of every token known to follow it."""

    def __init__(self, decay: float = 1.0) -> None:
        self.decay = decay  # factor of a pair's weights, each time that something is added to them
        self.after: dict[Pair, dict[int, float]] = {}

    def learn(self, tokens: Sequence[int], start: int = 0) -> None:
        """Adds 1 for each token of a text, from index `start` on."""
        for at in range(start, len(tokens)):
            behind = tokens[at - 2] if at > 1 else -1, tokens[at - 1] if at else -1
            self.add(behind, ((tokens[at], 1.0),))

    def add(self, behind: Pair, weights: Iterable[tuple[int, float]]) -> None:
        """Adds the weights of these tokens behind a pair."""
        known = self.after.setdefault(behind, {})
        if self.decay < 1:
            for token in known:
                known[token] *= self.decay
        for token, weight in weights:
            known[token] = known.get(token, 0.0) + weight

    def copy(self) -> Trigrams:
        """A table of its own with the same weights."""
        table = Trigrams(self.decay)
        table.after = {behind: dict(weights) for behind, weights in self.after.items()}
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
    """A node of the search: what may follow it, and how often roll-outs went there."""

    index: int  # among the nodes, 0 for the text's last token
    behind: Pair
    reach: float  # product of the probabilities on the path
    tokens: list[int]
    probs: list[float]
    visits: list[int]
    total: int = 0
    children: dict[int, _Branch] = field(default_factory=dict)  # by index of `tokens`

    @staticmethod
    def of(table: Trigrams, index: int, behind: Pair, reach: float) -> _Branch:
        known = table.after.get(behind, {})
        mass = sum(known.values())
        tokens = list(known) if mass > 0 else []
        return _Branch(index, behind, reach, tokens, [known[token] / mass for token in tokens], [0] * len(tokens))

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


def roll_out(table: Trigrams, behind: Pair, uniforms: np.ndarray, explore: float, most: int) -> list[Node]:
    """The `most` nodes of the highest reach that roll-outs visit, parents before children and siblings by reach.

    A roll-out goes from a node to one of its tokens in proportion to p (1 + explore sqrt(N) / (1 + n)), if n roll-outs
    took this token before, of N that passed the node.

    Args:
        uniforms: [depth, R] in (0, 1): one a step, for R roll-outs of `depth` tokens.
    """
    root = _Branch.of(table, 0, behind, 1.0)
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
                here.children[chosen] = _Branch.of(table, len(nodes), (here.behind[1], token), reach)
            here = here.children[chosen]
    return best(nodes, most)
