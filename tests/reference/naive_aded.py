"""ADED written from its paper with counters: a table over a whole history, and roll-outs as lists of paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt


def table(texts: Sequence[Sequence[int]]) -> dict[tuple[int, int], Counter[int]]:
    """Every trigram of the texts, which begin after two tokens -1."""
    counts: dict[tuple[int, int], Counter[int]] = {}
    for text in texts:
        padded = [-1, -1, *text]
        for first, second, third in zip(padded, padded[1:], padded[2:], strict=False):
            counts.setdefault((first, second), Counter())[third] += 1
    return counts


def tree(
    counts: dict[tuple[int, int], Counter[int]],
    behind: tuple[int, int],
    draws: Sequence[Sequence[float]],
    explore: float,
    most: int,
) -> list[tuple[int, ...]]:
    """The paths of the best nodes, best first; each entry of `draws` has the uniforms of one rollout."""
    visits: Counter[tuple[int, ...]] = Counter()
    reach: dict[tuple[int, ...], float] = {}
    for steps in draws:
        path: tuple[int, ...] = ()
        for u in steps:
            known = counts.get((*behind, *path)[-2:], Counter())
            if not known:
                break
            probs = {token: count / sum(known.values()) for token, count in known.items()}
            total = sum(visits[(*path, token)] for token in known)
            weights = [p * (1 + explore * sqrt(total) / (1 + visits[(*path, token)])) for token, p in probs.items()]
            bound, at = u * sum(weights), 0
            while at < len(weights) - 1 and bound >= sum(weights[: at + 1]):
                at += 1
            token = list(probs)[at]
            path = (*path, token)
            visits[path] += 1
            reach[path] = reach.get(path[:-1], 1.0) * probs[token]
    return sorted(reach, key=lambda path: -reach[path])[:most]
