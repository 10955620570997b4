"""The nodes that `reflective` adds behind a draft: a probe, and the draft once more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..contracts import DecodeContext, Draft


@dataclass(frozen=True, slots=True, eq=False)
class Reflection:
    """The probe's tokens [P] int64, which all rows of a request share, and its context."""

    probe: Tensor
    context: DecodeContext

    def keep(self, rows: np.ndarray) -> None:
        """Rows that leave do not change it."""

    def put(self, where: np.ndarray, other: Reflection) -> None:
        """Nor do rows that join."""

    def added(self, draft: Draft) -> np.ndarray:
        """[B] nodes behind each row's own; -1 in rows without a draft, or without the room for them."""
        added = len(self.probe) + draft.sizes - 2  # the last token is not copied: no drafted token follows it
        fits = (draft.sizes > 1) & (draft.base + draft.sizes + added <= self.context.text.limit)
        result: np.ndarray = np.where(fits, added, -1)
        return result

    def extended(self, draft: Draft) -> Draft:
        """The chains with the probe and their second copies behind them."""
        probe, device = self.probe, draft.tokens.device
        sizes = draft.sizes + self.added(draft).clip(0)
        size, width = torch.from_numpy(draft.sizes).to(device)[:, None], int(sizes.max())
        behind = torch.arange(width, device=device) - size  # where in what is added
        copied = (behind - len(probe) + 1).clamp(0, draft.width - 1)
        tokens = torch.where(behind < 0, pad(draft.tokens, (0, width))[:, :width], draft.tokens.gather(1, copied))
        if len(probe):
            inside = (behind >= 0) & (behind < len(probe))
            tokens = torch.where(inside, probe[behind.clamp(0, len(probe) - 1)], tokens)
        return Draft(tokens, sizes, draft.base)

    def second(self, draft: Draft) -> Tensor:
        """[B, T] int64: of each node that a drafted token follows, the fed node that predicts it again; else -1."""
        size = np.where(self.added(draft) >= 0, draft.sizes, 0)
        last = torch.from_numpy(size).to(draft.tokens.device)[:, None] - 1
        order = torch.arange(draft.width, device=last.device)
        return torch.where(order < last, last + len(self.probe) + order, -1)
