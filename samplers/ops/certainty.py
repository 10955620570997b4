"""Certainty density: the weighted share of known tokens around a position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_REACH = 12  # standard deviations after which a Gaussian adds nothing in float32


def certainty_density(known: Tensor, total: Tensor, sigma: float) -> Tensor:
    """The share of tokens around each position that are known, weighted by a Gaussian of `sigma` positions.

    Everything before a row counts as known, and everything after it is what its last position is.

    Args:
        known: [B, L] bool.
        total: [B] int64, the length of each row.

    Returns:
        [B, L] float32, without meaning past a row's end.

    >>> certainty_density(torch.tensor([[True, False, False]]), torch.tensor([3]), 1.0)
    tensor([[0.6995, 0.3005, 0.0586]])
    """
    length = known.shape[1]
    at = torch.arange(length, device=known.device)
    last = known.gather(1, (total - 1).clamp(min=0)[:, None])
    values = torch.where(at < total[:, None], known, last).float()
    near = values @ _gaussian(at[:, None] - at, sigma).float()
    reach = torch.arange(length + 1 + math.ceil(_REACH * sigma), device=known.device)
    tails = _gaussian(reach, sigma).flip(0).cumsum(0).flip(0)  # sum from each distance on
    outside = tails[at + 1] + last * tails[length - at]
    return (near + outside.float()) / (2 * tails[0] - 1).float()


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    return (-(distance.double() ** 2) / (2 * sigma**2)).exp()
