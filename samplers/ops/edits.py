"""Where the tokens of a block go when some of them are deleted, and masks are inserted before others."""

from __future__ import annotations

import torch
from torch import Tensor


def edit_sources(movable: Tensor, deleted: Tensor, split: Tensor) -> Tensor:
    """[B, W] int64: the position whose token each position takes over, -1 for a new mask.

    What is not `movable` stays, and tokens move between such positions alone: a stretch of movable ones is filled up
    with masks at its end, or loses there what it has no room for. All are bool [B, W].

    >>> true = torch.ones(1, 5, dtype=torch.bool)
    >>> edit_sources(true, torch.arange(5) == 1, torch.arange(5) == 3).tolist()
    [[0, 2, -1, 3, 4]]
    """
    width, device = movable.shape[1], movable.device
    order = torch.arange(width, device=device).expand_as(movable)
    count = torch.where(deleted, 0, torch.where(split, 2, 1)) * movable
    total = count.cumsum(1)
    begin = torch.where(movable, 0, order + 1).cummax(1).values  # of the stretch
    before = torch.where(movable, 0, total).cummax(1).values  # tokens that come of earlier stretches
    stop = torch.where(movable, width, order).flip(1).cummin(1).values.flip(1)
    last = begin + total - before - 1  # where a token goes: behind the mask that is inserted before it
    target = torch.where(movable, last, order)
    target = torch.where(movable & ((count == 0) | (last >= stop)), width, target)
    source = torch.full((len(movable), width + 1), -1, device=device)
    return source.scatter_(1, target, order)[:, :-1]
