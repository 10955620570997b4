"""Interpolated n-gram models: which token a text goes on with, counted in a corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np


class Ngrams:
    """Counts of the tokens behind 1, 2, ... tokens, and their relative frequencies, interpolated.

    >>> Ngrams([5, 6, 5, 6, 5, 7], (0.25, 0.75)).probabilities([6, 5], [6, 7, 8]).tolist()
    [0.5416666666666666, 0.4583333333333333, 0.0]
    """

    def __init__(self, corpus: Sequence[int], weights: Sequence[float]) -> None:
        """`weights[n - 1]` is that of contexts of n tokens."""
        self.weights = tuple(weights)
        self.counts: list[dict[tuple[int, ...], Counter[int]]] = [defaultdict(Counter) for _ in self.weights]
        for size, behind in enumerate(self.counts, 1):
            for end in range(size, len(corpus)):
                behind[tuple(corpus[end - size : end])][corpus[end]] += 1

    def probabilities(self, text: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """[T] float64: how likely each of `tokens` follows `text`; a context that the corpus has not counts as 0."""
        total = np.zeros(len(tokens))
        for size, (weight, behind) in enumerate(zip(self.weights, self.counts, strict=True), 1):
            following = behind.get(tuple(text[-size:])) if size <= len(text) else None
            if following:
                total += weight * np.array([following[token] for token in tokens]) / following.total()
        return total
