"""ADED written from its paper with counters: a table over a whole history, and roll-outs as lists of paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any


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


def rounds(
    law: Callable[[list[int]], list[float]],
    prompt: Sequence[int],
    new: int,
    uniform: Callable[[int, int, int], float],
    *,
    k: int,
    nodes: int,
    rollouts: int,
    explore: float,
    top: int,
    decay: float,
) -> list[int]:
    """The drafted tokens that each forward accepts, greedily; `law` has the probabilities after a text.

    `uniform` has that of a round, a position and a roll-out.
    """
    counts: dict[tuple[int, int], Any] = {}
    text, accepted = list(prompt), list[int]()

    def learn(before: Sequence[int], weights: Sequence[tuple[int, float]]) -> None:
        first, second = [-1, -1, *before][-2:]
        known = counts.setdefault((first, second), Counter())
        for token in known:
            known[token] *= decay
        for token, weight in weights:
            known[token] += weight

    for at, token in enumerate(prompt):
        learn(prompt[:at], [(token, 1)])
    while (left := len(prompt) + new - len(text)) > 0:
        draws = [
            [uniform(len(accepted), len(text) + depth, number) for depth in range(min(k, left - 1))]
            for number in range(rollouts)
        ]
        first, second = [-1, -1, *text][-2:]
        paths = tree(counts, (first, second), draws, explore, nodes) if accepted else []
        known = {path: law([*text, *path]) for path in [(), *paths]}
        here: tuple[int, ...] = ()
        while (longer := (*here, max(range(len(known[here])), key=known[here].__getitem__))) in known:
            here = longer
        for path, each in known.items() if top else ():
            best = sorted(range(len(each)), key=lambda token, each=each: -each[token])[:top]  # type: ignore[misc]
            learn([*text, *path], [(token, each[token]) for token in best])
        for token in longer:
            text.append(token)
            learn(text[:-1], [(token, 1)])
        accepted.append(len(here))
    return accepted
