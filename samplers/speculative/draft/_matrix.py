"""The likeliest followers of each token of the vocabulary, as last seen."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Matrix:
    """k candidates a token, one table a row or one for all; nothing is known of a token until it is written."""

    def __init__(self, rows: int | None, vocab: int, k: int, device: torch.device) -> None:
        self.shared = rows is None
        self.vocab, self.k = vocab, k
        # Behind the tables: a row of nothing known, which is only read, and one that takes what is not to be written.
        self.table = torch.full(((rows or 1) * vocab + 2, k), -1, dtype=torch.int32, device=device)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps the tables of these live rows."""
        if self.shared:
            return
        own = self.table[:-2].view(-1, self.vocab, self.k)[torch.from_numpy(rows).to(self.table.device)]
        self.table = torch.cat((own.flatten(0, 1), self.table[-2:]))

    def put(self, where: np.ndarray, other: Matrix) -> None:
        """The tables of `other` in place of those of the live rows at `where`."""
        if self.shared:
            return
        rows = torch.from_numpy(where).to(self.table.device)
        self.table[:-2].view(-1, self.vocab, self.k)[rows] = other.table[:-2].view(-1, self.vocab, self.k)

    def read(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """[B, n] int64: candidate `ranks` [n] of `tokens` [B, n], -1 where none is known or the token is -1."""
        place = torch.where(tokens < 0, len(self.table) - 2, tokens + self._first(len(tokens)))
        return self.table[place, ranks].long()

    def write(self, rows: Tensor, tokens: Tensor, distributions: Tensor, real: Tensor) -> None:
        """What follows `tokens` [n, T] of live `rows` [n], where `real`, is ranked by `laws` [n, T, V].

        Of equal tokens the one with the greatest index (and, in one table for all, in the greatest row) stays.
        """
        top = distributions.topk(min(self.k, distributions.shape[-1])).indices.int().flatten(0, 1)
        first = 0 if self.shared else rows[:, None] * self.vocab
        place, order = torch.where(real & (tokens >= 0), tokens + first, -1).flatten().sort(stable=True)
        last = place != torch.cat((place[1:], place.new_full((1,), -1)))
        where = torch.where(last & (place >= 0), place, len(self.table) - 1)
        self.table[where, : top.shape[1]] = top[order]

    def _first(self, batch: int) -> Tensor | int:
        """[B, 1]: where each row's table begins."""
        return 0 if self.shared else torch.arange(batch, device=self.table.device)[:, None] * self.vocab
