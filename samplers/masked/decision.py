"""What one step of the masked loop does to the canvas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..ops.distribution import Distribution
from ..ops.rank import best
from .contracts import Canvas, Proposal, Stage
from .writing import Revision, Writing

_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step does to the canvas."""

    chosen: Writing
    by: Stage  # the stage that names the tokens chosen
    revision: Revision | None = None
    fill: Writing | None = None
    columns: Tensor | None = None  # [B, K] positions that `fill` may write

    def filled(
        self, canvas: Canvas, rows: np.ndarray, which: Tensor, columns: Tensor, distribution: Distribution
    ) -> Decision:
        """In these `rows` the likeliest tokens at `columns` [B, K], where `which` [B, L + 1], instead."""
        ids, probability = distribution.greedy
        fill = Writing(
            which,
            torch.zeros_like(canvas.tokens).scatter_(1, columns, ids),
            torch.zeros_like(canvas.commit_score).scatter_(1, columns, probability),
        )
        rest = torch.from_numpy(~rows).to(which.device)[:, None]
        revision = None if self.revision is None else self.revision.only(rest)
        return Decision(self.chosen.only(rest), self.by, revision, fill, columns)


def at_least_one(chosen: Tensor, proposal: Proposal, progress: np.ndarray | None = None) -> Tensor:
    """`chosen` [B, W] where eligible; the best candidate of a row with none before `progress` [B] (None: anywhere).

    Where a forward computed no candidate before `progress`, the best of the row counts: every step commits a token.
    """
    if progress is not None:
        first = proposal.evidence.positions < torch.from_numpy(progress).to(chosen.device)[:, None]
        first = first | ~(first & proposal.eligible).any(1, keepdim=True)
        chosen = chosen & proposal.eligible
        score = proposal.score.clamp(min=_LOWEST).masked_fill(~(proposal.eligible & first), -torch.inf)
        return chosen | (best(score) & proposal.eligible & first & ~(chosen & first).any(1, keepdim=True))
    if chosen.device.type == "cpu":
        host = chosen.numpy() & proposal.eligible.numpy()
        if host.any(1).all():
            return torch.from_numpy(host)
    chosen = chosen & proposal.eligible
    # A method may score -inf for "last"; open positions still come before the others.
    score = proposal.score.clamp(min=_LOWEST).masked_fill(~proposal.eligible, -torch.inf)
    return chosen | (best(score) & proposal.eligible & ~chosen.any(1, keepdim=True))
