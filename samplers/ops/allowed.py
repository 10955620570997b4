"""The sets of allowed tokens at the positions of live rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ..batching import RowState
from ..host_transfer import upload
from ..request import Allowed


class AllowedRows(RowState):
    """The set of allowed tokens at each position of every live row.

    Attributes:
        sets: [S, V] bool; set 0 allows everything, as after a row's end. None while every row may take everything.
        at: [B, C] int64: the set of each position; positions after the last column have set 0.
    """

    per_row = ("at",)
    at: Tensor

    def __init__(self, allowed: Allowed | None, rows: int, device: torch.device) -> None:
        self.sets = None if allowed is None else allowed.sets.to(device)
        if allowed is None:
            self.at = torch.zeros(rows, 1, dtype=torch.int64, device=device)
            return
        self.at = pad(pad_sequence(list(allowed.at), batch_first=True), (0, 1)).to(device)

    @property
    def sets(self) -> Tensor | None:
        return self._sets

    @sets.setter
    def sets(self, sets: Tensor | None) -> None:
        self._sets, self._only = sets, None
        if sets is not None:
            only = torch.where(sets.sum(-1) == 1, sets.long().argmax(-1), -1)
            self._only = None if bool((only < 0).all()) else only  # the only token of each set, or -1

    def __bool__(self) -> bool:
        """Whether any row may have a set that excludes tokens."""
        return self.sets is not None

    @property
    def forced(self) -> Tensor | None:
        """[B, C] int64: the only allowed token of each position, -1 where several are allowed; None if all are -1."""
        return None if self._only is None else self._only[self.at]

    def mask(self, rows: Tensor, positions: Tensor) -> Tensor:
        """[..., V] bool: the tokens allowed at `positions` of live `rows`, whose shapes broadcast."""
        assert self.sets is not None, "some row is limited"
        return self.sets[self.at[rows, positions.clamp(max=self.at.shape[1] - 1)]]

    def with_sets(self, rows: Sequence[int], positions: Sequence[int], sets: np.ndarray) -> AllowedRows:
        """A copy with `sets` [N, V] bool at `positions` [N] of live `rows` [N], for one step."""
        device = self.at.device
        own = torch.ones(1, sets.shape[1], dtype=torch.bool, device=device) if self.sets is None else self.sets
        result = AllowedRows(None, len(self.at), device)
        result._sets = torch.cat([own, upload(sets, device)])
        result.at = pad(self.at, (0, max(max(positions) + 2 - self.at.shape[1], 0))).clone()
        row, column = upload(torch.tensor(rows), device), upload(torch.tensor(positions), device)
        result.at[row, column] = torch.arange(len(own), len(own) + len(sets), device=device)
        return result

    def put(self, where: np.ndarray, other: AllowedRows) -> None:
        """Replaces the rows at `where` by the rows of `other`; drops sets that no row uses any more."""
        if self.sets is None and other.sets is None:
            return
        some = self.sets if self.sets is not None else other.sets
        assert some is not None, "one of them has sets"
        every = [some[:1], *(sets[1:] for sets in (self.sets, other.sets) if sets is not None)]
        offset = 0 if self.sets is None else len(self.sets) - 1
        width = max(self.at.shape[1], other.at.shape[1])
        at = pad(self.at, (0, width - self.at.shape[1]))
        theirs = torch.where(other.at > 0, other.at + offset, 0)
        at[upload(where, at.device)] = pad(theirs, (0, width - theirs.shape[1]))
        used, index = torch.unique(torch.cat([at.new_zeros(1), at.flatten()]), return_inverse=True)
        self.at = index[1:].view(at.shape)
        self.sets = torch.cat(every)[used] if len(used) > 1 else None
