"""Logits of a part of the vocabulary, as a drafter of few ids gives them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LogitsOverIds:
    """Processed logits of some ids; all others have the probability 0."""

    logits: Tensor  # [B, K, N]
    ids: Tensor | None = None  # [N] int64, the id of each column; None: column i is id i

    def tokens(self, columns: Tensor) -> Tensor:
        """The ids of these columns [...]."""
        return columns if self.ids is None else self.ids.take(columns)
