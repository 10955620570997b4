"""The target's own queries in front of each row's next token, by which a stage may choose what is read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pardec.models.hidden import Hidden

from .contracts import Verdict


class QueryRecord:
    """What the forwards of a round keep of their queries; does nothing where `count` is 0.

    Attributes:
        layers: of each layer [B, n, H, D]: `count` in front of the token that follows the prompt, later one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.layers: tuple[Tensor, ...] = ()
        self._parts: list[tuple[np.ndarray, Hidden]] = []
        self._first = True

    def add(self, rows: np.ndarray, hidden: Hidden) -> None:
        """The forward of these live rows, one of those that make up a round."""
        if self.count:
            self._parts.append((rows, hidden))

    def pick(self, verdict: Verdict) -> None:
        """Those behind each row's accepted path, once it is known; the prompt's are all of them."""
        if not self.count or not self._parts:
            return
        node = verdict.path.gather(1, verdict.count[:, None])[:, 0]
        first, self._first = self._first, False
        parts = []
        for rows, hidden in self._parts:
            where = torch.from_numpy(rows).to(node.device)
            each = hidden.queries
            if not first:
                each = tuple(q[torch.arange(len(rows), device=q.device), node[where].to(q.device), None] for q in each)
            parts.append(each)
        order = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in self._parts])))
        self.layers = tuple(torch.cat(layer)[order.to(layer[0].device)] for layer in zip(*parts, strict=True))
        self._parts.clear()
