"""A law over so many positions that their logits are not held: they are made piece by piece, when they are asked for.

    [B, W, V] is never there; of W positions with V logits each, as many are made at a time as fit into HELD bytes

Statistics take one pass of the head, and so do logits of a few tokens and draws. What reads all logits at once
(`rows`, `logits`) still makes them all.

They are cut by rows and not by the vocabulary: so many rows read the head's weight no more often than
its product does anyway, guidance and what is ruled out come before the statistics, and the numbers are the head's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite

from .confidence import Confidence, confidence, greedy
from .distribution import Distribution, Noise, parted

HELD = 1 << 28  # bytes of float32 logits that are made at once; less is simply held

Read = TypeVar("Read")
Make = Callable[[Tensor], Tensor]  # indices [N] of rows -> their logits [N, V] float32


def too_many(rows: int, vocab: int) -> bool:
    """Whether logits of so many rows are made piece by piece."""
    return rows * vocab * 4 > HELD


class ChunkedDistribution(Distribution):
    """softmax(make(row)) at each position, `place` [B, W] saying the row of each, of `count` in all."""

    def __init__(self, make: Make, count: int, vocab: int, place: Tensor) -> None:
        vars(self).update(make=make, count=count, vocab=vocab, place=place)  # frozen, as laws are
        self.make: Make
        self.count: int
        self.place: Tensor

    def placed(self, place: Tensor) -> ChunkedDistribution:
        """The same rows at other positions, `place` [B, W]."""
        return ChunkedDistribution(self.make, self.count, self.vocab, place)

    @property
    def device(self) -> torch.device:
        return self.place.device

    @cached_property
    def rows(self) -> Tensor:
        return self.make(torch.arange(self.count, device=self.place.device))

    @property
    def logits(self) -> Tensor:
        return self.make(self.place.flatten()).view(*self.place.shape, self.vocab)

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        if "confidence" in vars(self):
            return self.confidence.ids, self.confidence.probability
        ids, probability = zip(*self._each(lambda _, rows: greedy(rows)), strict=True)
        return self.aligned(torch.cat(ids)), self.aligned(torch.cat(probability))

    @cached_property
    def confidence(self) -> Confidence:
        found = zip(*self._each(lambda _, rows: confidence(rows)), strict=True)
        return Confidence(*(self.aligned(torch.cat(part)) for part in found))

    def highest(self) -> Tensor:
        return torch.stack(list(self._each(lambda _, rows: finite.highest(rows)))).sum()

    def at(self, tokens: Tensor) -> Tensor:
        place, wanted = self.place.flatten(), tokens.flatten(0, 1)
        out = torch.empty(wanted.shape, dtype=torch.float32, device=wanted.device)

        def read(index: Tensor, rows: Tensor) -> None:
            first = int(index[0])
            here = ((place >= first) & (place < first + len(index))).nonzero()[:, 0]
            out[here] = rows[place[here] - first].gather(1, wanted[here])

        deque(self._each(read), maxlen=0)
        return out.view(tokens.shape)

    def some(self, places: np.ndarray) -> Tensor:
        return self.make(self.place.flatten()[torch.from_numpy(places).to(self.device)])

    def draw(self, places: np.ndarray, noise: Noise) -> Tensor:
        return torch.cat([self._drawn(part, noise) for part in parted(places, HELD // (4 * self.vocab))])

    def _drawn(self, places: np.ndarray, noise: Noise) -> Tensor:
        """Of places whose logits may be held at once."""
        return Distribution(self.some(places)).draw(np.arange(len(places)), lambda some: noise(places[some]))

    def scaled(self, temperature: float) -> Distribution:
        return self.mapped(lambda logits: logits if temperature == 1 else logits / temperature)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        return ChunkedDistribution(lambda index: change(self.make(index)[None])[0], self.count, self.vocab, self.place)

    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        return self.aligned(torch.cat(list(self._each(lambda _, rows: embed(rows.softmax(-1))))))

    def _each(self, read: Callable[[Tensor, Tensor], Read]) -> Iterator[Read]:
        """What `read` makes of the indices of rows that follow each other and of their logits, held by nobody else."""
        step = max(1, HELD // (4 * self.vocab))
        for start in range(0, self.count, step):
            index = torch.arange(start, min(start + step, self.count), device=self.place.device)
            yield read(index, self.make(index))


def joined(distributions: Sequence[Distribution], order: Tensor) -> Distribution:
    """The laws of groups of rows as one of all rows, in `order`."""
    places, count = [], 0
    for distribution in distributions:
        size = _count(distribution)
        place = (
            distribution.place
            if distribution.place is not None
            else torch.arange(size, device=order.device).view(distribution.rows.shape[:2])
        )
        places.append(place + count)
        count += size
    place = torch.cat(places)[order]
    if not any(isinstance(distribution, ChunkedDistribution) for distribution in distributions) and not too_many(
        count, distributions[0].vocab
    ):
        return Distribution(
            torch.cat([distribution.rows.reshape(-1, distribution.vocab) for distribution in distributions]), place
        )
    return ChunkedDistribution(lambda index: _of(distributions, index), count, distributions[0].vocab, place)


def _count(distribution: Distribution) -> int:
    """Rows that a law has."""
    return distribution.count if isinstance(distribution, ChunkedDistribution) else distribution.rows.shape[:-1].numel()


def _of(distributions: Sequence[Distribution], index: Tensor) -> Tensor:
    """The rows `index` [N] of the laws, counted over all of them."""
    out = torch.empty((len(index), distributions[0].vocab), dtype=torch.float32, device=index.device)
    first = 0
    for distribution in distributions:
        size = _count(distribution)
        here = ((index >= first) & (index < first + size)).nonzero()[:, 0]
        if len(here):
            own = index[here] - first
            out[here] = (
                distribution.make(own)
                if isinstance(distribution, ChunkedDistribution)
                else distribution.rows.reshape(-1, distribution.vocab)[own]
            )
        first += size
    return out
