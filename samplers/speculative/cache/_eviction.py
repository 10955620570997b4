"""What the rows of a request have kept of their texts, where what was evicted is never seen again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..reading import Renewal


@dataclass
class Eviction(Renewal):
    """Slots that are kept, beside when rows were last filled; rows are first, and 0 is nothing in all of it."""

    first: np.ndarray  # [B] the slot from which on nothing has been evicted
    budgets: np.ndarray  # [B, L] slots that each layer keeps below that; all 0: not known yet
    survivors: Tensor  # [B, L, N, K] int64: slots below `first` that are kept, plus 1, in order

    @staticmethod
    def start(rows: int, refresh: int) -> Eviction:
        """Rows that have evicted nothing."""
        zeros = np.zeros(rows, dtype=np.int64)
        none = torch.zeros(rows, 0, 0, 0, dtype=torch.int64)
        return Eviction(np.full(rows, refresh), zeros, zeros.copy(), np.zeros((rows, 0), dtype=np.int64), none)

    def candidates(self, layer: int, rows: np.ndarray, stop: np.ndarray, heads: int) -> Tensor:
        """[b, S, K] the slots of `rows` [b] below `stop` [b] that are left in a layer, in order; -1 behind them."""
        begin = torch.from_numpy(np.minimum(self.first[rows], stop))[:, None]
        fresh = begin + torch.arange(max(0, int((stop - begin[:, 0].numpy()).max())))
        fresh = torch.where(fresh < torch.from_numpy(stop)[:, None], fresh, -1)
        both = fresh[..., None].expand(-1, -1, heads)
        if self.survivors.shape[1]:
            survivors = self.survivors[torch.from_numpy(rows), layer, :, :heads] - 1
            both = torch.cat((survivors, both), 1)
        none = torch.iinfo(both.dtype).max
        ordered = torch.where(both < 0, none, both).sort(1).values
        size = int((ordered < none).sum(1).max())
        return torch.where(ordered == none, -1, ordered)[:, :size]

    def keep_slots(self, rows: np.ndarray, chosen: Sequence[Tensor], first: np.ndarray) -> None:
        """From now on `rows` [b] keep `chosen` [b, N, K] of each layer, and all from `first` [b] on."""
        most = [max(each.shape[axis] for each in chosen) for axis in (1, 2)]
        wide = [F.pad(each + 1, (0, most[1] - each.shape[2], 0, most[0] - each.shape[1])) for each in chosen]
        new = torch.stack(wide, 1)
        shape = [max(sizes) for sizes in zip(self.survivors.shape[1:], new.shape[1:], strict=True)]
        self.survivors, new = (_widened(each, shape) for each in (self.survivors, new))
        self.survivors = self.survivors.index_copy(0, torch.from_numpy(rows), new)
        self.first = self.first.copy()
        self.first[rows] = first


def _widened(value: Tensor, shape: Sequence[int]) -> Tensor:
    """`value` [B, ...] with zeros behind it up to `shape`."""
    return F.pad(value, [size for to, of in zip(shape[::-1], value.shape[:0:-1], strict=True) for size in (0, to - of)])
