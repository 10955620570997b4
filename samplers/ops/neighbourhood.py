"""Sums of probability over the neighbours of tokens, which a table [V, K] names, nearest first.

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

    `near` [N, M, K] int64 is nearest[ids], where it has been made.
    """
    if backend(values.device) == "triton":
        from .neighbourhood_triton import around as fast

        return fast(values, ids, nearest)
    near = nearest[ids].long() if near is None else near
    return values.gather(1, near.flatten(1)).view(near.shape).sum(-1)


def within(distribution: Tensor, token: Tensor, nearest: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """What the nearest of each `token` [N] add up to within `limit` [N], and whether the first of them is; both [N].

    Of probabilities `law` [N, V], at least 0, and `nearest` [V, K]. A limit below 0 lets nothing in, and 0 those that
    have nothing.
    """
    if backend(distribution.device) == "triton":
        from .neighbourhood_triton import within as fast

        return fast(distribution, token, nearest, limit)
    mass = pad(distribution.gather(1, nearest[token].long()).cumsum(1), (1, 0))  # of the nearest 0, 1, 2, ...
    fits = mass <= limit[:, None]
    return torch.where(fits, mass, 0).amax(1), fits[:, 1:].any(1)
