"""Positions and tokens by their ranks in a proposal."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...ops.rank import descending
from ..contracts import Choice, Proposal


def of_ranks(commits: np.ndarray, choice: Choice, proposal: Proposal) -> Choice:
    """The positions and tokens of `commits` [N, G, 2], by rank in the proposal; nothing where a position is missing."""
    rank = descending(proposal.score)[1]
    which, tokens = torch.zeros_like(proposal.eligible), choice.tokens
    complete = torch.ones_like(which[:, :1])
    for position, token in commits.transpose(1, 2, 0):
        number = torch.from_numpy(position).to(rank.device)[:, None]
        at = (rank == number) & proposal.eligible
        complete &= at.any(1, keepdim=True) | (number < 0)
        which |= at
        tokens = other_tokens(tokens, at, np.maximum(token, 0), proposal)
    return Choice(which & complete, tokens)


def other_tokens(tokens: Tensor, at: Tensor, rank: np.ndarray, proposal: Proposal) -> Tensor:
    """`tokens` [N, W], but where `at` marks one position of a row, its token of `rank` [N] there, if that is not 0."""
    rows = np.flatnonzero((rank > 0) & at.any(1).cpu().numpy())
    if not len(rows):
        return tokens
    columns = at.cpu().numpy()[rows].argmax(1)
    logits = proposal.evidence.distribution.logits_at(rows * tokens.shape[1] + columns)
    order = logits.topk(min(int(rank[rows].max()) + 1, logits.shape[1]), dim=1).indices
    index = torch.from_numpy(np.minimum(rank[rows], order.shape[1] - 1)).to(order.device)[:, None]
    other = tokens.clone()
    other[torch.from_numpy(rows), torch.from_numpy(columns)] = order.gather(1, index)[:, 0]
    return other
