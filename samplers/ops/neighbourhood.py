"""Sums of probability over the neighbours of tokens, given by a table [V, K], nearest first.

neighbour_sums(x)  = sum over the K neighbours y of x of r(y)
mass_within(x, l)  = the largest mass <= l of x's nearest m <= K neighbours, m = 0 giving 0
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.kernels.choice import backend


def neighbour_sums(values: Tensor, ids: Tensor, nearest: Tensor, near: Tensor | None = None) -> Tensor:
    """[N, M]: the sums of `values` [N, V] over the neighbours of each of `ids` [N, M]; `nearest` [V, K].

    `near` [N, M, K] int64 is nearest[ids], if already known.
    """
    if backend(values.device) == "triton":
        from .neighbourhood_triton import neighbour_sums as fast

        return fast(values, ids, nearest)
    near = nearest[ids].long() if near is None else near
    return values.gather(1, near.flatten(1)).view(near.shape).sum(-1)


def mass_within(distribution: Tensor, token: Tensor, nearest: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """The largest mass of each token's nearest neighbours up to `limit` [N], and whether the first one fits, both [N].

    `distribution` [N, V] is at least 0, `nearest` is [V, K]. A limit below 0 admits none, and 0 those of
    probability 0.
    """
    if backend(distribution.device) == "triton":
        from .neighbourhood_triton import mass_within as fast

        return fast(distribution, token, nearest, limit)
    mass = pad(distribution.gather(1, nearest[token].long()).cumsum(1), (1, 0))  # mass of the nearest 0, 1, 2, ...
    fits = mass <= limit[:, None]
    return torch.where(fits, mass, 0).amax(1), fits[:, 1:].any(1)
