"""Independent sets: sets of positions without two that conflict."""

from __future__ import annotations

import torch
from torch import Tensor

from .rank import descending


def independent_set(score: Tensor, nodes: Tensor, conflict: Tensor) -> Tensor:
    """The subset of `nodes` [B, W] bool that a greedy pass by descending `score` [B, W] takes without conflicts.

    `conflict` [B, W, W] bool is symmetric, without its diagonal. Equal scores go to the lowest position. Rounds take at
    once whatever leads all of its conflicts, which is what the pass takes one by one.

    >>> score, nodes = torch.tensor([[0.9, 0.8, 0.7]]), torch.ones(1, 3, dtype=torch.bool)
    >>> chain = torch.tensor([[[0, 1, 0], [1, 0, 1], [0, 1, 0]]]).bool()
    >>> independent_set(score, nodes, chain).tolist()
    [[True, False, True]]
    """
    rank = descending(score.masked_fill(~nodes, -torch.inf))[1]
    ahead = conflict & (rank[:, None, :] < rank[:, :, None])  # [B, W, W]: higher-scored nodes in conflict with each
    left, taken = nodes, torch.zeros_like(nodes)
    for _ in range(left.shape[1]):  # each round takes at least one
        if left.device.type == "cpu" and not left.any():  # on a GPU, reading this would synchronize
            break
        leads = left & ~(ahead & left[:, None, :]).any(2)
        taken = taken | leads
        left = left & ~leads & ~(conflict & leads[:, None, :]).any(2)
    return taken
