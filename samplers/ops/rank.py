"""Ranking of scores within a row; equal scores go to the lowest position."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..host_transfer import upload
from .confidence import suits_numpy


def best(score: Tensor) -> Tensor:
    """[B, W] bool: the highest score of each row."""
    if suits_numpy(score):
        mask = np.zeros(score.shape, dtype=bool)
        mask[np.arange(len(mask)), score.numpy().argmax(1)] = True
        return torch.from_numpy(mask)
    return torch.zeros_like(score, dtype=torch.bool).scatter_(1, score.argmax(1, keepdim=True), True)


def descending(score: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of each row in descending order, and the rank of each position; both [B, W]."""
    ordered, order = score.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(score.shape[1], device=score.device).expand_as(order)
    return ordered, torch.empty_like(order).scatter_(1, order, rank)


def top(score: Tensor, count: Tensor) -> Tensor:
    """[B, W] bool: the `count` [B, 1] highest scores of each row."""
    return descending(score)[1] < count


def top_as_published(score: Tensor, count: np.ndarray, window: np.ndarray, length: np.ndarray) -> Tensor:
    """[B, W] bool: torch.topk over each whole row, with its order of ties, on which published loops depend.

    The scores are those of the positions `window` [B, W], -inf where nothing can be chosen; rows have `length` [B]
    positions. A loop over rows, since the order of ties depends on `count` [B] and the length.
    """
    mask = torch.zeros_like(score, dtype=torch.bool)
    for row, (positions, total, quota) in enumerate(zip(window, length.tolist(), count.tolist(), strict=True)):
        inside = upload(positions < total, score.device)
        where = upload(positions, score.device)[inside]
        whole = torch.full((total,), -torch.inf, dtype=score.dtype, device=score.device)
        whole[where] = score[row, inside]
        taken = torch.zeros_like(whole, dtype=torch.bool)
        taken[whole.topk(min(quota, total)).indices] = True
        mask[row, inside] = taken[where]
    return mask & (score > -torch.inf)
