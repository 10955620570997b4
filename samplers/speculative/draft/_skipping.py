"""Which sub-blocks of a stack can be left out: evenly spread ones, and a search for ones that are missed less."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pardec.models.model import LanguageModel

Skip = frozenset[tuple[int, str]]  # (layer, "attn" or "mlp")

_ENOUGH = 0.95  # a match as good as this ends the search
_PATIENCE = 300  # tries without a gain that end it
_TRIES = 1000
_DRAWS = 50  # in search of a choice that was not tried yet

_kept: WeakKeyDictionary[Any, dict[tuple[float, int], Search]] = WeakKeyDictionary()  # by the model's stack


def kept(model: LanguageModel, ratio: float, context: int) -> Search:
    """The search of this model, which goes on from request to request."""
    searches = _kept.setdefault(model.decoder, {})
    return searches.setdefault((ratio, context), Search(model.layers, ratio))


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


@dataclass(frozen=True, slots=True)
class Tally:
    """How much better than the best a choice was on some texts, and what they weigh."""

    gain: float = 0.0
    weight: float = 0.0

    def plus(self, other: Tally) -> Tally:
        return Tally(self.gain + other.gain, self.weight + other.weight)


class Search:
    """Tries choices of a fixed number of sub-blocks and keeps the best: at random, and by exchanging one of the best.

    Scores are compared only where they were taken on the same text: a new one has the best choice scored again. A
    choice is judged once the texts that it was scored on weigh 1 together.
    """

    def __init__(self, layers: int, ratio: float) -> None:
        self.blocks = inner(layers)
        self.best: Skip = uniform(layers, ratio)
        self.score: float | None = None  # of the best, on `text`
        self.text: tuple[Hashable, float] | None = None  # and what it weighs
        self.tried: set[Skip] = {self.best}
        self.open: dict[Skip, Tally] = {}  # what still has to be scored on other texts
        self.here: dict[Skip, Tally] = {}  # of this text alone
        self.idle = 0  # tries since the last gain
        self.sampled = np.random.RandomState(0)

    def next(self, text: Hashable, weight: float = 1.0) -> Skip | None:
        """What to score next on a part of `text` that weighs so much; None ends the search there."""
        if (text, weight) != self.text or self.score is None:
            if self.text is not None and text != self.text[0]:  # else it is the same one grown, and replaces it
                unsettled = {skip: part for skip, part in self.here.items() if part.weight}
                self.open |= {skip: self.open.get(skip, Tally()).plus(part) for skip, part in unsettled.items()}
            self.text, self.here = (text, weight), {}
            return self.best
        if self.score > _ENOUGH or self.idle >= _PATIENCE:
            return None
        for skip in self.open:
            if skip not in self.here:
                return skip
        for _ in range(_DRAWS if len(self.tried) < _TRIES else 0):
            skip = self._neighbour() if len(self.tried) % 2 else self._random()
            if skip not in self.tried:
                self.tried.add(skip)
                return skip
        if not self.open and not any(part.weight for part in self.here.values()):
            self.idle = _PATIENCE  # next to everything was tried
        return None

    def record(self, skip: Skip, score: float) -> None:
        """The score of what `next` gave."""
        if skip == self.best:
            self.score = score
            return
        assert self.text is not None, "next has named it"
        assert self.score is not None, "the best is scored first"
        weight = self.text[1]
        self.here[skip] = Tally(weight * (score - self.score), weight)
        total = self.here[skip].plus(self.open.get(skip, Tally()))
        if total.weight < 1:
            return
        self.idle += 1
        self.here[skip] = Tally()  # judged, and not scored here again
        self.open.pop(skip, None)
        if total.gain > 0:
            self.best, self.score, self.idle = skip, score, 0
            self.open, self.here = {}, {}

    def _random(self) -> Skip:
        return frozenset(self.blocks[i] for i in self.sampled.permutation(len(self.blocks))[: len(self.best)])

    def _neighbour(self) -> Skip:
        out = [block for block in self.blocks if block not in self.best]
        if not out or not self.best:
            return self.best
        gone = sorted(self.best)[self.sampled.randint(len(self.best))]
        return self.best - {gone} | {out[self.sampled.randint(len(out))]}
