"""Ranking of scores within a row; equal scores go to the lowest position."""

from __future__ import annotations

import torch
from torch import Tensor


def best(score: Tensor) -> Tensor:
    """[B, W] bool: the highest score of each row."""
    return torch.zeros_like(score, dtype=torch.bool).scatter_(1, score.argmax(1, keepdim=True), True)


def descending(score: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of each row from the highest on, and the rank of each position; both [B, W]."""
    ordered, order = score.sort(dim=1, descending=True, stable=True)
    places = torch.arange(score.shape[1], device=score.device).expand_as(order)
    return ordered, torch.empty_like(order).scatter_(1, order, places)


def top(score: Tensor, count: Tensor) -> Tensor:
    """[B, W] bool: the `count` [B, 1] highest scores of each row."""
    return descending(score)[1] < count
