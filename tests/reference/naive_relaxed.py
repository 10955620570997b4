"""Relaxed acceptances token by token, in float64, written from the papers and the method pages: for comparison only.

`near[x]` lists the other tokens, the most similar to x first. A distribution q of None is a point mass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.reference.naive_acceptance import Found, Node, children, normal

Near = Sequence[Sequence[int]]
Test = tuple[float, np.ndarray]  # the chance of acceptance, and the law that a rejection leaves


def in_turn(nodes: Sequence[Node], p: np.ndarray, uniform: Callable[[int], float], test: Callable[..., Test]) -> Found:
    """Tests the nodes of a tree, siblings one after the other; `test(law, node, parent)` is the rule."""
    here, path, tested = 0, list[int](), list[int]()
    while True:
        distribution = p[here].astype(np.float64)
        for node in children(nodes, here):
            tested.append(node)
            chance, left = test(distribution, nodes[node], here)
            if uniform(node) < chance:
                path.append(node)
                here = node
                break
            distribution = left
        else:
            return Found(path, distribution, tested)


def exact_residual(distribution: np.ndarray, node: Node) -> np.ndarray:
    drawn = np.eye(len(distribution))[node.token] if node.q is None else np.asarray(node.q, dtype=np.float64)
    return normal(np.maximum(distribution - drawn, 0))


# --- gsd ---


def group(
    distribution: np.ndarray, scores: np.ndarray, x: int, table: np.ndarray, size: int, prob: float, dist: float
) -> set[int]:
    """The group of x among the `size` ranks around its own; empty if fewer than half of them are below its rank."""
    ascending = sorted(range(len(distribution)), key=lambda y: (scores[y], y))
    rank = ascending.index(x)
    if rank < size // 2:
        return set()
    ranks = ascending[rank - size // 2 : rank + size - size // 2]
    return {
        y for y in ranks if abs(distribution[y] - distribution[x]) < prob and ((table[y] - table[x]) ** 2).sum() < dist
    }


def grouped(distribution: np.ndarray, node: Node, members: set[int], *, reference: bool) -> Test:
    inside = sorted(members) or [node.token]
    theirs = 1.0 if node.q is None else float(np.asarray(node.q)[inside].sum())
    possible = reference or distribution[node.token] > 0
    return min(1.0, float(distribution[inside].sum()) / theirs) * possible, exact_residual(distribution, node)


# --- lantern as published ---


def borrowed(
    distribution: np.ndarray, x: int, near: Near, k: int, delta: float, ratio: float | None
) -> tuple[float, int]:
    """The mass of the nearest tokens, up to k and the limit, and their number."""
    limit = delta if ratio is None else (ratio - 1) * distribution[x]
    mass, count = 0.0, 0
    for y in list(near[x])[:k]:
        if mass + distribution[y] > limit:
            break
        mass, count = mass + distribution[y], count + 1
    return mass, count


def published(distribution: np.ndarray, node: Node, near: Near, k: int, delta: float, ratio: float | None) -> Test:
    x = node.token
    mass, count = borrowed(distribution, x, near, k, delta, ratio)
    around = list(near[x])[: k + 1] if count else []
    if node.q is None:
        left, chance = distribution.copy(), distribution[x] + mass
        left[[x, *around]] = 0
    else:
        q = np.array(node.q, dtype=np.float64)
        chance = (distribution[x] + mass) / q[x]
        q[around] = 0
        left = np.maximum(distribution - q, 0)
    uniform = np.full(len(distribution), 1 / len(distribution))
    return min(1.0, chance), normal(left) if left.sum() > 0 else uniform


# --- lantern as a transform of the law ---


def transported(
    p: np.ndarray, drawn: np.ndarray | Sequence[int], near: Near, k: int, delta: float, ratio: float | None
) -> np.ndarray:
    """p~ for children sampled from the distribution `drawn`, or for point masses, whose tokens are `drawn`."""
    vocab = range(len(p))
    if isinstance(drawn, np.ndarray):
        room = [max(drawn[x] - p[x], 0.0) for x in vocab]
        spare = [max(p[n] - drawn[n], 0.0) for n in vocab]
    else:
        room = [1 - p[x] if x in drawn else 0.0 for x in vocab]
        spare = [0.0 if n in drawn else p[n] for n in vocab]
    room = [0.0 if p[x] == 0 else d if ratio is None else min(d, (ratio - 1) * p[x]) for x, d in enumerate(room)]
    moves = {}
    for n in vocab:
        takers = [x for x in vocab if room[x] > 0 and n in list(near[x])[:k]]
        for x in takers:
            moves[n, x] = spare[n] * room[x] / sum(room[y] for y in takers)
    for x in vocab:
        column = sum(mass for (_, to), mass in moves.items() if to == x)
        if column > room[x]:
            moves = {(n, to): mass * room[x] / column if to == x else mass for (n, to), mass in moves.items()}
    whole = sum(moves.values())
    scale = min(1.0, delta / whole) if whole else 0.0
    distribution = p.astype(np.float64).copy()
    for (n, x), mass in moves.items():
        distribution[n] -= scale * mass
        distribution[x] += scale * mass
    return distribution
