"""Sampling by the inverse CDF, with one uniform per draw."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import wide


def sample(weights: Tensor, u: Tensor) -> Tensor:
    """[...] int64: an index in proportion to `weights` [..., V], at least 0, by the inverse CDF of uniforms `u` [...].

    >>> sample(torch.tensor([[0.2, 0.0, 0.6, 0.2]] * 3), torch.tensor([0.1, 0.2, 0.79]).double()).tolist()
    [0, 2, 2]
    """
    mass = wide(weights).cumsum(-1)
    whole = mass[..., -1:].contiguous()
    index = torch.searchsorted(mass, u[..., None] * whole, right=True)
    # Rounding may exceed the total: take the last index of positive weight. NaN weights, which the loop refuses
    # afterwards, have none.
    last = torch.searchsorted(mass, whole).clamp(max=weights.shape[-1] - 1)
    return torch.minimum(index, last)[..., 0]
