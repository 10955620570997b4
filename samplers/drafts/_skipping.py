"""Which sub-blocks of a stack can be left out: evenly spread ones, and a search for ones that are missed less."""

from __future__ import annotations

import numpy as np

Skip = frozenset[tuple[int, str]]  # (layer, "attn" or "mlp")

_ENOUGH = 0.95  # a match as good as this ends the search
_PATIENCE = 300  # tries without a gain that end it
_TRIES = 1000
_DRAWS = 50  # in search of a choice that was not tried yet


def inner(layers: int) -> list[tuple[int, str]]:
    """The sub-blocks that may be skipped: all but those of the first and the last layer."""
    return [(layer, part) for layer in range(1, layers - 1) for part in ("attn", "mlp")]


def uniform(layers: int, ratio: float) -> Skip:
    """A share `ratio` of the inner sub-blocks: whole layers evenly spread, and of an odd number one attention more.

    >>> sorted(uniform(8, 0.5))
    [(2, 'attn'), (2, 'mlp'), (4, 'attn'), (4, 'mlp'), (6, 'attn'), (6, 'mlp')]
    """
    count = int(len(inner(layers)) * ratio)
    whole, odd = divmod(count, 2)
    spread = {1 + int((i + 0.5) * (layers - 2) / whole) for i in range(whole)}
    skip = {(layer, part) for layer in spread for part in ("attn", "mlp")}
    if odd:
        free = [layer for layer in range(1, layers - 1) if layer not in spread]
        skip.add((free[len(free) // 2], "attn"))
    return frozenset(skip)


class Search:
    """Tries choices of a fixed number of sub-blocks and keeps the best: at random, and by exchanging one of the best.

    Scores are compared only where they were taken on the same text: a new one has the best choice scored again.
    """

    def __init__(self, layers: int, ratio: float) -> None:
        self.blocks = inner(layers)
        self.best: Skip = uniform(layers, ratio)
        self.score: float | None = None  # of the best, on `text`
        self.text: tuple[int, ...] = ()
        self.tried: set[Skip] = {self.best}
        self.idle = 0  # tries since the last gain
        self.drawn = np.random.RandomState(0)

    def next(self, text: tuple[int, ...]) -> Skip | None:
        """What to score next on `text`, which names the rows that it is made of; None ends the search."""
        if text != self.text or self.score is None:
            self.text = text
            return self.best
        if self.score > _ENOUGH or self.idle >= _PATIENCE or len(self.tried) >= _TRIES:
            return None
        for _ in range(_DRAWS):
            skip = self._neighbour() if len(self.tried) % 2 else self._random()
            if skip not in self.tried:
                self.tried.add(skip)
                return skip
        self.idle = _PATIENCE  # next to everything was tried
        return None

    def told(self, skip: Skip, score: float) -> None:
        """The score of what `next` gave."""
        if skip == self.best:
            self.score = score
            return
        self.idle += 1
        if self.score is None or score > self.score:
            self.best, self.score, self.idle = skip, score, 0

    def _random(self) -> Skip:
        return frozenset(self.blocks[i] for i in self.drawn.permutation(len(self.blocks))[: len(self.best)])

    def _neighbour(self) -> Skip:
        out = [block for block in self.blocks if block not in self.best]
        if not out or not self.best:
            return self.best
        gone = sorted(self.best)[self.drawn.randint(len(self.best))]
        return self.best - {gone} | {out[self.drawn.randint(len(out))]}
