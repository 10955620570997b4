"""Sums of probability over the neighbours of tokens, given by a table [V, K], nearest first.

around(x)     = sum over the K neighbours y of x of r(y)
within(x, l)  = the most mass of x's nearest m <= K with no more than l, m = 0 giving 0
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.kernels.choice import backend


def around(values: Tensor, ids: Tensor, nearest: Tensor, near: Tensor | None = None) -> Tensor:
    """[N, M]: the sums of `values` [N, V] over the neighbours of each of `ids` [N, M]; `nearest` [V, K].

    `near` [N, M, K] int64 is nearest[ids], if known already.
    """
    if backend(values.device) == "triton":
        from .neighbourhood_triton import around as fast

        return fast(values, ids, nearest)
    near = nearest[ids].long() if near is None else near
    return values.gather(1, near.flatten(1)).view(near.shape).sum(-1)


def within(distribution: Tensor, token: Tensor, nearest: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """The most that nearest neighbours of each `token` [N] sum to within `limit` [N], and whether one fits; [N] each.

    `distribution` [N, V] holds probabilities, at least 0; `nearest` is [V, K]. A limit below 0 admits no neighbour, and
    0 those of probability 0.
    """
    if backend(distribution.device) == "triton":
        from .neighbourhood_triton import within as fast

        return fast(distribution, token, nearest, limit)
    mass = pad(distribution.gather(1, nearest[token].long()).cumsum(1), (1, 0))  # of the nearest 0, 1, 2, ...
    fits = mass <= limit[:, None]
    return torch.where(fits, mass, 0).amax(1), fits[:, 1:].any(1)
