"""A distribution over so many positions that its logits do not fit in memory: they are computed in chunks, on demand.

    [B, W, V] is never there; of W positions with V logits each, as many are computed at a time as fit into CHUNK_BYTES

Statistics take one pass of the head, and so do logits of a few tokens and sampling. Only `logits` computes them all.

Chunks are cut by rows and not by the vocabulary: with so many rows the head's weight is read no more often than one
matmul does anyway, guidance and excluded tokens come before the statistics, and the values are the head's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite

from ..host_transfer import upload
from .confidence import Confidence, confidence, greedy
from .distribution import DenseDistribution, Distribution, Keys, Noise, align, split

CHUNK_BYTES = 1 << 28  # bytes of float32 logits per chunk; fewer are kept in memory

T = TypeVar("T")
RowLogits = Callable[[Tensor], Tensor]  # indices [N] of rows -> their logits [N, V] float32


def needs_chunks(rows: int, vocab: int) -> bool:
    """Whether the logits of `rows` rows are computed in chunks."""
    return rows * vocab * 4 > CHUNK_BYTES


def _within(of: Callable[[np.ndarray], Tensor], chunk: np.ndarray, at: np.ndarray) -> Tensor:
    """Calls `of` for the positions chunk[at]: `at` [M] are indices into the `chunk` [N]."""
    return of(chunk[at])


class ChunkedDistribution(Distribution):
    """softmax(logits_of_rows(row)) at each position."""

    def __init__(self, logits_of_rows: RowLogits, count: int, vocab: int, index: Tensor) -> None:
        """`index` [B, W] int64: the row of each position, among `count` rows."""
        self.logits_of_rows, self.count, self._vocab, self.index = logits_of_rows, count, vocab, index

    def reindexed(self, index: Tensor) -> ChunkedDistribution:
        """The same rows at other positions, `index` [B, W]."""
        return ChunkedDistribution(self.logits_of_rows, self.count, self.vocab, index)

    @property
    def vocab(self) -> int:
        return self._vocab

    @property
    def device(self) -> torch.device:
        return self.index.device

    @property
    def logits(self) -> Tensor:
        return self.logits_of_rows(self.index.flatten()).view(*self.index.shape, self.vocab)

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        if "confidence" in vars(self):
            return super().greedy
        ids, probability = zip(*self._each(lambda _, logits: greedy(logits)), strict=True)
        return align(torch.cat(ids), self.index), align(torch.cat(probability), self.index)

    @cached_property
    def confidence(self) -> Confidence:
        statistics = zip(*self._each(lambda _, logits: confidence(logits)), strict=True)
        return Confidence(*(align(torch.cat(chunks), self.index) for chunks in statistics))

    def highest(self) -> Tensor:
        return torch.stack(list(self._each(lambda _, logits: finite.highest(logits)))).sum()

    def logits_of(self, tokens: Tensor) -> Tensor:
        index, wanted = self.index.flatten(), tokens.flatten(0, 1)
        out = torch.empty(wanted.shape, dtype=torch.float32, device=wanted.device)

        def read(rows: Tensor, logits: Tensor) -> None:
            first = int(rows[0])
            here = ((index >= first) & (index < first + len(rows))).nonzero()[:, 0]
            out[here] = logits[index[here] - first].gather(1, wanted[here])

        deque(self._each(read), maxlen=0)
        return out.view(tokens.shape)

    def logits_at(self, positions: np.ndarray | Tensor) -> Tensor:
        return self.logits_of_rows(self.index.flatten()[upload(positions, self.device)])

    def draw(self, positions: np.ndarray, noise: Noise, keys: Keys | None = None) -> Tensor:
        def sample(chunk: np.ndarray) -> Tensor:
            own = None if keys is None else partial(_within, keys, chunk)
            whole = DenseDistribution(self.logits_at(chunk))
            return whole.draw(np.arange(len(chunk)), partial(_within, noise, chunk), own)

        return torch.cat([sample(chunk) for chunk in split(positions, CHUNK_BYTES // (4 * self.vocab))])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        return ChunkedDistribution(
            lambda rows: change(self.logits_of_rows(rows)[None])[0], self.count, self.vocab, self.index
        )

    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        return align(torch.cat(list(self._each(lambda _, logits: embed(logits.softmax(-1))))), self.index)

    def _each(self, read: Callable[[Tensor, Tensor], T]) -> Iterator[T]:
        """Calls `read(rows, logits)` for each chunk of consecutive rows; only `read` can keep the logits."""
        step = max(1, CHUNK_BYTES // (4 * self.vocab))
        for start in range(0, self.count, step):
            rows = torch.arange(start, min(start + step, self.count), device=self.device)
            yield read(rows, self.logits_of_rows(rows))


RowDistribution = DenseDistribution | ChunkedDistribution  # with logits by row


def join(distributions: Sequence[RowDistribution], order: Tensor) -> RowDistribution:
    """Joins the distributions of groups of batch rows into one, with rows in `order`."""
    indices: list[Tensor] = []
    counts: list[int] = []
    for each in distributions:
        index = each.index
        if index is None:
            index = torch.arange(each.count, device=order.device).view(each.logits.shape[:2])
        indices.append(index + sum(counts))
        counts.append(each.count)
    index, vocab = torch.cat(indices)[order], distributions[0].vocab
    dense = [each for each in distributions if isinstance(each, DenseDistribution)]
    if len(dense) == len(distributions) and not needs_chunks(sum(counts), vocab):
        return DenseDistribution(torch.cat([each.row_logits.reshape(-1, vocab) for each in dense]), index)

    def logits_of_rows(rows: Tensor) -> Tensor:
        out = torch.empty((len(rows), vocab), dtype=torch.float32, device=rows.device)
        first = 0
        for each, size in zip(distributions, counts, strict=True):
            here = ((rows >= first) & (rows < first + size)).nonzero()[:, 0]
            if len(here):
                out[here] = each.logits_of_rows(rows[here] - first)
            first += size
        return out

    return ChunkedDistribution(logits_of_rows, sum(counts), vocab, index)
