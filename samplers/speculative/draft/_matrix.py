"""The most likely successors of each token, as last predicted by the target."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Matrix:
    """k candidates for each token, one table a row or one for all rows; -1 until a token is written."""

    def __init__(self, rows: int | None, vocab: int, k: int, device: torch.device) -> None:
        self.shared = rows is None
        self.vocab, self.k = vocab, k
        # Behind the tables: a line of -1 that is only read, and one that receives masked writes.
        self.table = torch.full(((rows or 1) * vocab + 2, k), -1, dtype=torch.int32, device=device)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps the tables of these live rows."""
        if self.shared:
            return
        own = self.table[:-2].view(-1, self.vocab, self.k)[torch.from_numpy(rows).to(self.table.device)]
        self.table = torch.cat((own.flatten(0, 1), self.table[-2:]))

    def put(self, target: np.ndarray, other: Matrix) -> None:
        """The tables of `other` in place of those of the live rows at `where`."""
        if self.shared:
            return
        rows = torch.from_numpy(target).to(self.table.device)
        self.table[:-2].view(-1, self.vocab, self.k)[rows] = other.table[:-2].view(-1, self.vocab, self.k)

    def read(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """[B, n] int64: candidate `ranks` [n] of `tokens` [B, n], -1 if there is none or the token is -1."""
        index = torch.where(tokens < 0, len(self.table) - 2, tokens + self._first(len(tokens)))
        return self.table[index, ranks].long()

    def write(self, rows: Tensor, tokens: Tensor, distributions: Tensor, real: Tensor) -> None:
        """Stores the top of `distributions` [n, T, V] behind `tokens` [n, T] of live `rows` [n], where `real`.

        Of equal tokens the last one is stored (with a shared table that of the last row).
        """
        top = distributions.topk(min(self.k, distributions.shape[-1])).indices.int().flatten(0, 1)
        first = 0 if self.shared else rows[:, None] * self.vocab
        index, order = torch.where(real & (tokens >= 0), tokens + first, -1).flatten().sort(stable=True)
        last = index != torch.cat((index[1:], index.new_full((1,), -1)))
        target = torch.where(last & (index >= 0), index, len(self.table) - 1)
        self.table[target, : top.shape[1]] = top[order]

    def _first(self, batch: int) -> Tensor | int:
        """[B, 1]: the first line of each row's table."""
        return 0 if self.shared else torch.arange(batch, device=self.table.device)[:, None] * self.vocab
