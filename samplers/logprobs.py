"""Log-probabilities of committed tokens, by the model's own distribution at the forward that committed each of them.

    log softmax(logits), float32

The logits are those of the forward, guidance included: before temperature, filters, processors, allowed tokens and
logits stages, and with the mask token of a masked model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from .host_transfer import to_host, upload
from .request import Request


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs:
    """Log-probabilities at n positions, on the host; NaN, and ids of -1, where no forward committed a token.

    A slice of it is that of the sliced positions.

    >>> logprobs = TokenLogprobs.empty(3, top=2)
    >>> logprobs[1:].ids.shape
    (2, 2)
    """

    own: np.ndarray  # [n] float32: log-probability of the committed token
    ids: np.ndarray  # [n, k] int64: the k likeliest tokens, the likeliest first
    top: np.ndarray  # [n, k] float32: their log-probabilities
    candidates: np.ndarray  # [n, c] float32: log-probabilities of `logprob_ids`, in their order

    @classmethod
    def empty(cls, *shape: int, top: int = 0, candidates: int = 0) -> Self:
        """No values, at `shape` positions."""
        own, tops, others = (np.full((*shape, *more), np.nan, dtype=np.float32) for more in ((), (top,), (candidates,)))
        return cls(own, np.full(tops.shape, -1, dtype=np.int64), tops, others)

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: Any) -> TokenLogprobs:
        return TokenLogprobs(*(getattr(self, field.name)[index] for field in fields(self)))


def top_ids(logits: Tensor, count: int) -> Tensor:
    """The ids [N, count] of the likeliest tokens by `logits` [N, V], in falling order; ties: the lowest ids.

    Of tokens that tie, torch.topk takes any, others for another count (PyTorch 2.13), so that a list could lack the
    greedy token, which has the lowest id.
    """
    least = logits.topk(count, dim=-1).values[:, -1:]
    above, equal = logits > least, logits == least
    taken = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    ids = taken.byte().topk(count, dim=-1).indices.sort(dim=-1).values
    return ids.gather(-1, logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices)


class LiveRows(Protocol):
    """A loop state that has the request index of each live row."""

    rows: np.ndarray  # [B]


class LogprobRecorder:
    """The log-probabilities of one request, its finished rows included.

    They are kept by the row's index in the request, so that nothing moves when rows leave; a row that joins takes over
    the index of a finished one.
    """

    def __init__(self, live: LiveRows, length: int, *, top: int, ids: Sequence[int], device: torch.device) -> None:
        """Records the `top` likeliest tokens and the candidates `ids` at each of `length` positions."""
        self.live, self.count = live, top
        self.candidates = upload(torch.tensor(ids, dtype=torch.int64), device)
        self.values = TokenLogprobs.empty(len(live.rows), length, top=top, candidates=len(ids))  # [R, L, ...]

    @classmethod
    def of(cls, request: Request, live: LiveRows, length: int, device: torch.device) -> Self | None:
        """The recorder for a request; None if it asks for no log-probabilities."""
        if request.logprobs is None:
            return None
        return cls(live, length, top=request.logprobs, ids=request.logprob_ids, device=device)

    def row(self, at: int, start: int, end: int) -> TokenLogprobs:
        """Copies of the log-probabilities of the live row at index `at`, at positions `start` to `end` - 1."""
        return self.values[[int(self.live.rows[at])], start:end][0]

    def of_rows(self, rows: Sequence[int], length: int) -> TokenLogprobs:
        """Copies of the log-probabilities of these rows of the request, at their first `length` positions."""
        return self.values[list(rows), :length]

    def add(self, rows: np.ndarray, positions: np.ndarray, tokens: Tensor, logits: Tensor) -> None:
        """Records `tokens` [N], committed at `positions` [N] of the request's `rows` [N] by `logits` [N, V]."""
        if not len(rows):
            return
        every = logits.log_softmax(-1)
        parts = {"own": every.gather(-1, tokens[:, None])[:, 0]}
        if self.count:
            ids = top_ids(logits, self.count)
            parts |= {"ids": ids, "top": every.gather(-1, ids)}
        if len(self.candidates):
            parts["candidates"] = every.index_select(-1, self.candidates)
        for name, values in to_host(parts).items():
            getattr(self.values, name)[rows, positions] = values

    def clear(self, rows: np.ndarray, positions: np.ndarray) -> None:
        """Clears the log-probabilities at `positions` [N] of the request's `rows` [N], which are open again."""
        for name, blank in (("own", np.nan), ("ids", -1), ("top", np.nan), ("candidates", np.nan)):
            getattr(self.values, name)[rows, positions] = blank

    def reserve(self, count: int) -> None:
        """Makes room for rows with indices below `count`."""
        self._resize(max(count, self.values.own.shape[0]), self.values.own.shape[1])

    def _resize(self, rows: int, length: int) -> None:
        have = self.values.own.shape
        if (rows, length) == have:
            return
        larger = TokenLogprobs.empty(rows, length, top=self.count, candidates=len(self.candidates))
        for field in fields(larger):
            getattr(larger, field.name)[: have[0], : have[1]] = getattr(self.values, field.name)
        self.values = larger

    def put(self, rows: np.ndarray, other: LogprobRecorder) -> None:
        """Gives the live rows of `other` the indices `rows` [n] of finished ones; may add positions."""
        theirs = other.values.own.shape[1]
        self._resize(self.values.own.shape[0], max(self.values.own.shape[1], theirs))
        every = np.arange(self.values.own.shape[1])
        self.clear(rows[:, None], every[None])
        for field in fields(self.values):
            getattr(self.values, field.name)[rows, :theirs] = getattr(other.values, field.name)[other.live.rows]
