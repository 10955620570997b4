"""Acceptance rules row by row and node by node, in float64, written from the papers: for comparison only.

A node is (token, parent, tested, q): q a list of floats, or None for a point mass. Node 0 is the root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np


class Node(NamedTuple):
    token: int
    parent: int
    tested: bool = True
    q: Sequence[float] | None = None


class Found(NamedTuple):
    path: list[int]  # accepted nodes
    distribution: np.ndarray  # what the next token is drawn from
    tested: list[int]  # nodes in the order of their tests


def children(nodes: Sequence[Node], node: int) -> list[int]:
    return [i for i, each in enumerate(nodes) if i and each.tested and each.parent == node]


def normal(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def recursive(nodes: Sequence[Node], p: np.ndarray, uniform: Callable[[int], float]) -> Found:
    """Speculative sampling, and recursive rejection among siblings."""
    here, path, tested = 0, list[int](), list[int]()
    while True:
        distribution = p[here].astype(np.float64)
        for node in children(nodes, here):
            tested.append(node)
            token, q = nodes[node].token, nodes[node].q
            drawn = np.eye(len(distribution))[token] if q is None else np.asarray(q, dtype=np.float64)
            if uniform(node) * drawn[token] < distribution[token]:
                path.append(node)
                here = node
                break
            distribution = normal(np.maximum(distribution - drawn, 0))
        else:
            return Found(path, distribution, tested)


def block(nodes: Sequence[Node], p: np.ndarray, uniform: Callable[[int], float]) -> Found:
    """Block verification of a chain: the longest prefix whose own test passes, whatever the others' tests say."""
    count, vocab = len(nodes) - 1, p.shape[1]
    laws = [np.eye(vocab)[node.token] if node.q is None else np.asarray(node.q, dtype=np.float64) for node in nodes]
    w, best, left = 1.0, 0, normal(np.maximum(p[0] - laws[1], 0)) if count and (p[0] > laws[1]).any() else p[0]
    for i in range(1, count + 1):
        token = nodes[i].token
        w = min(1.0, w * p[i - 1][token] / laws[i][token])
        if i == count:
            h, rest = w, p[i]
        else:
            rest = np.maximum(w * p[i] - laws[i + 1], 0)
            h = 1.0 if rest.sum() + 1 - w == 0 else rest.sum() / (rest.sum() + 1 - w)
        if uniform(i) < h:
            best, left = i, normal(rest) if rest.sum() > 0 else p[i]
    return Found(list(range(1, best + 1)), left, list(range(1, count + 1)))


def typical(
    nodes: Sequence[Node], p: np.ndarray, epsilon: float, delta: float, inside: float = 0.0
) -> tuple[list[int], float]:
    """Medusa's rule: the longest path of typical nodes, ties by the sum of log p; and the sum of 1 - p over it."""

    def fits(node: int) -> bool:
        distribution = p[nodes[node].parent].astype(np.float64)
        entropy = -sum(x * math.log(x + inside) for x in distribution if x + inside > 0 and x > 0)
        return bool(distribution[nodes[node].token] > min(epsilon, delta * math.exp(-entropy)))

    def chance(node: int) -> float:
        return float(p[nodes[node].parent][nodes[node].token])

    best: tuple[int, float, list[int]] = (0, 0.0, [])
    paths: list[tuple[float, list[int]]] = [(0.0, [])]
    while paths:
        score, path = paths.pop(0)
        if (len(path), score) > best[:2] or not best[2]:
            best = (len(path), score, path)
        for node in children(nodes, path[-1] if path else 0):
            if fits(node):
                paths.append((score + math.log(chance(node)), [*path, node]))
    return best[2], sum(1 - chance(node) for node in best[2])


# --- several drafts of one token: every outcome weighted by its probability ---


def single(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.minimum(p, q).sum())


def optimum(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """The largest possible probability that one of k independent drafts is accepted: a minimum over sets of tokens."""
    sets = product((0, 1), repeat=len(p))
    return 1 + min(float(p[np.array(s, bool)].sum() - q[np.array(s, bool)].sum() ** k) for s in sets)


def rho(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """SpecTr's division factor, by bisection on its equation."""

    def excess(x: float) -> float:
        beta = float(np.minimum(p / x, q).sum())
        return 1 - (1 - beta) ** k - x * beta

    low, high = 1.0, float(k)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
