"""Sets of sub-blocks to skip when drafting: evenly spread, or found by a search."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from pardec.models.model import LanguageModel

from ._skip_files import SkipFile

Skip = frozenset[tuple[int, str]]  # (layer, "attn" or "mlp")

_ENOUGH = 0.95  # a match above this ends the search
_PATIENCE = 300  # candidates without a gain that end it
_TRIES = 1000
_DRAWS = 50  # attempts to find a new candidate

# By the model's decoder; then by ratio, context, version of the weights, and whether it is kept on disk.
_searches: WeakKeyDictionary[Any, dict[tuple[float, int, int, bool], Search]] = WeakKeyDictionary()


def shared_search(model: LanguageModel, ratio: float, context: int, *, disk: bool = False) -> Search:
    """The search of this model, continued from request to request until its weights are replaced.

    With `disk` it begins with what another process has found for these weights, and leaves to others what it finds.
    """
    searches, version = _searches.setdefault(model.decoder, {}), model.weights_version
    for stale in [key for key in searches if key[2] != version]:
        del searches[stale]
    key = ratio, context, version, disk
    if key not in searches:
        searches[key] = Search(model.layers, ratio, SkipFile.of(model, ratio, context) if disk else None)
    return searches[key]


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
    """A candidate's gain over the best one on some texts, and the weight of these texts."""

    gain: float = 0.0
    weight: float = 0.0

    def plus(self, other: Tally) -> Tally:
        return Tally(self.gain + other.gain, self.weight + other.weight)


class Search:
    """Searches sets of a fixed number of sub-blocks, at random and by exchanging one of the best set's.

    Only scores on the same text are compared: on a new text the best set is scored again. A candidate is judged once
    the texts that it was scored on have a total weight of 1.
    """

    def __init__(self, layers: int, ratio: float, file: SkipFile | None = None) -> None:
        """`file` has the best set of an earlier search, with which this one begins, and is to have that of this one."""
        self.blocks, self.file = inner(layers), file
        self.best: Skip = uniform(layers, ratio)
        self.score: float | None = None  # of the best, on `text`
        self.text: tuple[Hashable, float] | None = None  # and its weight
        self.proposed: set[Skip] = {self.best}
        self.open: dict[Skip, Tally] = {}  # candidates that need scores on more texts
        self.on_text: dict[Skip, Tally] = {}  # on the present text
        self.idle = 0  # candidates since the last gain
        self.rng = np.random.RandomState(0)
        if file is not None:
            self._read(file)

    def next(self, text: Hashable, weight: float = 1.0) -> Skip | None:
        """The set to score next on a part of `text` with this `weight`; None if there is nothing to score."""
        if (text, weight) != self.text or self.score is None:
            if self.text is not None and text != self.text[0]:  # else a longer part of the same text replaces it
                unsettled = {skip: part for skip, part in self.on_text.items() if part.weight}
                self.open |= {skip: self.open.get(skip, Tally()).plus(part) for skip, part in unsettled.items()}
            self.text, self.on_text = (text, weight), {}
            return self.best
        if self.score > _ENOUGH or self.idle >= _PATIENCE:
            return None
        for skip in self.open:
            if skip not in self.on_text:
                return skip
        for _ in range(_DRAWS if len(self.proposed) < _TRIES else 0):
            skip = self._neighbour() if len(self.proposed) % 2 else self._random()
            if skip not in self.proposed:
                self.proposed.add(skip)
                return skip
        if not self.open and not any(part.weight for part in self.on_text.values()):
            self._end()  # nearly all sets were tried
        return None

    def record(self, skip: Skip, score: float) -> None:
        """Records the score of a set from `next`."""
        if skip == self.best:
            self.score = score
            return
        assert self.text is not None, "next has named it"
        assert self.score is not None, "the best is scored first"
        weight = self.text[1]
        self.on_text[skip] = Tally(weight * (score - self.score), weight)
        total = self.on_text[skip].plus(self.open.get(skip, Tally()))
        if total.weight < 1:
            return
        self.idle += 1
        self.on_text[skip] = Tally()  # judged; not scored on this text again
        self.open.pop(skip, None)
        if total.gain > 0:
            self.best, self.score, self.idle = skip, score, 0
            self.open, self.on_text = {}, {}
        if total.gain > 0 or self.idle == _PATIENCE:
            self._write()

    def _end(self) -> None:
        if self.idle < _PATIENCE:
            self.idle = _PATIENCE
            self._write()

    def _read(self, file: SkipFile) -> None:
        """Takes over what an earlier search found, if it is a set that this one could find."""
        values = file.read() or {}
        try:
            skip = frozenset((int(layer), str(part)) for layer, part in values["skip"])
            idle = int(values["idle"])
        except (KeyError, TypeError, ValueError):
            return
        if len(skip) == len(self.best) and skip <= set(self.blocks):
            self.best, self.idle = skip, idle
            self.proposed.add(skip)
            # Other candidates than those that the earlier search began with.
            self.rng = np.random.RandomState(zlib.crc32(repr(sorted(skip)).encode()))

    def _write(self) -> None:
        if self.file is not None:
            self.file.write({"skip": sorted(self.best), "idle": self.idle})

    def _random(self) -> Skip:
        return frozenset(self.blocks[i] for i in self.rng.permutation(len(self.blocks))[: len(self.best)])

    def _neighbour(self) -> Skip:
        out = [block for block in self.blocks if block not in self.best]
        if not out or not self.best:
            return self.best
        removed = sorted(self.best)[self.rng.randint(len(self.best))]
        return self.best - {removed} | {out[self.rng.randint(len(out))]}
