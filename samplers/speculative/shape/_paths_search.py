"""The tree of paths that is accepted the longest, for given hit rates of ranks.

    rates a[d][r]: how often the token of rank r behind a node of depth d is right;  a node's value is the product of
    the rates on its path;  the accepted tokens of a tree, expected for independent heads, are the sum of its values

A node's value is at most its parent's. Where rates fall with the rank, it is also at most that of its sibling of the
rank before, so that adding the greatest value in reach, N times, gives the best tree of N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ..trees import Path

Rates = Sequence[Sequence[float]]


def best_paths(rates: Rates, nodes: int) -> tuple[Path, ...]:
    """The `nodes` paths of the greatest values, in the order in which they were added; fewer if there are no more.

    A rank is only added behind the one before it, whatever the rates say. Of equal values the shorter path, and then
    the one of lower ranks, comes first.

    >>> best_paths([[0.6, 0.2], [0.5, 0.1]], 3)
    ((0,), (0, 0), (1,))
    """
    heap: list[tuple[float, int, Path]] = []
    chosen: list[Path] = []

    def offer(path: Path) -> None:
        if len(path) <= len(rates) and path[-1] < len(rates[len(path) - 1]):
            heappush(heap, (-value(rates, path), len(path), path))

    offer((0,))
    while heap and len(chosen) < nodes:
        path = heappop(heap)[-1]
        chosen.append(path)
        offer((*path, 0))
        offer((*path[:-1], path[-1] + 1))
    return tuple(chosen)


def value(rates: Rates, path: Path) -> float:
    """The product of the rates along `path`."""
    product = 1.0
    for level, rank in zip(rates, path, strict=False):
        product *= level[rank]
    return product


def accepted(rates: Rates, paths: Sequence[Path]) -> float:
    """The tokens of the tree that are accepted in a round, expected for independent heads."""
    return sum(value(rates, path) for path in paths)
