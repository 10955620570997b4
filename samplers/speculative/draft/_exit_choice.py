"""Where each row's next draft exits and how long it gets, by counts of the tokens that each exit would have drafted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...batching import put_rows
from ..contracts import DecodeContext, Length, RoundResult

_ROW_FIELDS = ("matched", "tested", "sure", "exit", "most")


def tokens_per_layer(acceptance: np.ndarray, exits: np.ndarray, layers: int, most: int) -> np.ndarray:
    """[..., C, most + 1]: expected tokens of a round over the layers that it runs, for each exit and length from 0 on.

    A token drafted behind exit l is accepted with probability acceptance[..., C], independently of the others.

    >>> tokens_per_layer(np.array([0.5]), np.array([1]), 4, 2).round(3).tolist()
    [[0.25, 0.3, 0.292]]
    """
    length = np.arange(most + 1)
    expected = (acceptance[..., None] ** length).cumsum(-1)
    rate: np.ndarray = expected / (length * exits[:, None] + layers)
    return rate


class Choice(Length):
    """The counts of one request's rows, and what follows from them. It ends drafts as a length controller does.

    Attributes, one entry a row, on the host:
        matched, tested: [B, C] shadow tokens of each exit.
        sure: [B, 2, 2] sums of max q and numbers of tokens, of accepted and of rejected ones.
        exit: [B] the layers that draft in the next round.
        most: [B] and how many tokens.
    """

    def __init__(self, rows: int, exits: tuple[int, ...], layers: int, k: int, decay: float) -> None:
        self.exits, self.layers, self.k, self.decay = np.array(exits), layers, k, decay
        self.matched = np.tile(self.exits / layers, (rows, 1))
        self.tested = np.ones((rows, len(exits)))
        self.sure = np.zeros((rows, 2, 2))
        self.exit = np.full(rows, exits[len(exits) // 2])
        self.most = np.full(rows, k)
        self.confidence = np.zeros((rows, 0))  # [B, steps] of this round

    @property
    def threshold(self) -> np.ndarray:
        """[B] the probability under which a draft ends: 0 until tokens were accepted, and others rejected."""
        total, count = self.sure[..., 0], self.sure[..., 1]
        mean = total / np.maximum(count, 1e-12)
        middle: np.ndarray = np.where((count > 0).all(1), mean.mean(1), 0)
        return middle

    def budget(self, most: int, context: DecodeContext, state: None) -> np.ndarray:
        self.confidence = self.confidence[:, :0]
        return self.most

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: None) -> Tensor:
        values = confidence.double().cpu().numpy()
        self.confidence = np.column_stack((self.confidence, values))
        return torch.from_numpy(values < self.threshold)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: None) -> None:
        """Learns from the confidence of this round's tokens, those up to the first rejected one."""
        accepted, drafted = outcome.levels()
        step = np.arange(self.confidence.shape[1])
        part = (
            (step < accepted[:, None]) & (step < drafted[:, None]),
            (step == accepted[:, None]) & (step < drafted[:, None]),
        )
        fresh = np.stack([np.stack(((self.confidence * each).sum(1), each.sum(1)), -1) for each in part], 1)
        self.sure = np.where(drafted[:, None, None] > 0, self.sure * self.decay + fresh, self.sure)
        self.confidence = self.confidence[:, :0]

    def count(self, rows: np.ndarray, matched: np.ndarray, tested: np.ndarray) -> None:
        """Adds shadow tokens [n, C] of `rows` [n], `tested` [n] positions each, and chooses for these rows anew."""
        self.matched[rows] = self.matched[rows] * self.decay + matched
        self.tested[rows] = self.tested[rows] * self.decay + tested[:, None]
        acceptance = self.matched[rows] / self.tested[rows]
        rate = tokens_per_layer(acceptance, self.exits, self.layers, self.k).reshape(len(rows), -1)
        best = rate.argmax(1)
        self.exit[rows], self.most[rows] = self.exits[best // (self.k + 1)], best % (self.k + 1)

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        for name in _ROW_FIELDS:
            setattr(self, name, getattr(self, name)[rows])
        self.confidence = np.zeros((len(rows), 0))

    def put(self, where: np.ndarray, other: Choice) -> None:
        """The rows of `other` in place of the live rows at `where`."""
        for name in _ROW_FIELDS:
            setattr(self, name, put_rows(getattr(self, name), where, getattr(other, name)))
