"""A pool of n-grams by their first token, and a tree of guesses from it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class Pool:
    """Up to `most` continuations of each token, dropping the least recently added; None keeps all."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.after: dict[int, dict[tuple[int, ...], None]] = {}  # least recently added first

    def add(self, token: int, following: tuple[int, ...]) -> None:
        known = self.after.setdefault(token, {})
        known.pop(following, None)
        known[following] = None
        if self.most is not None and len(known) > self.most:
            del known[next(iter(known))]

    def learn(self, tokens: np.ndarray, size: int) -> None:
        """Adds every run of `size` tokens of a text [L], in order."""
        text = tokens.tolist()
        for start in range(len(text) - size + 1):
            self.add(text[start], tuple(text[start + 1 : start + size]))

    def continuations(self, token: int) -> tuple[tuple[int, ...], ...]:
        """The continuations of `token`, most recently added last."""
        return tuple(self.after.get(token, ()))


def trie(guesses: Iterable[tuple[int, ...]], first: int) -> list[tuple[int, int, int]]:
    """Token, parent and depth of each node of the tree of all `guesses` below node 0; indices start at `first`.

    >>> trie([(5, 6), (5, 7), (4,)], 10)
    [(5, 0, 1), (6, 10, 2), (7, 10, 2), (4, 0, 1)]
    """
    nodes: list[tuple[int, int, int]] = []
    index: dict[tuple[int, ...], int] = {(): 0}
    for guess in guesses:
        for depth in range(1, len(guess) + 1):
            path = guess[:depth]
            if path not in index:
                index[path] = first + len(nodes)
                nodes.append((path[-1], index[path[:-1]], depth))
    return nodes
