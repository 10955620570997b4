"""Resampling the tokens of a window when their distributions have changed, so that most tokens stay the same."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import gumbel, wide
from .inverse_cdf import sample
from .verification import residual, without


def coupled_sample(
    p: Tensor, old: Tensor, q: Tensor, point: Tensor, has_old: Tensor, keep: Tensor, u: Tensor
) -> Tensor:
    """A sample of each distribution p [N, V], equal to `old` [N] as often as possible (a maximal coupling).

        old stays  iff  keep q[old] < p[old],  else  x ~ norm([p - q]+),  for a point mass p without old

    `q` [N, V] is the distribution that `old` was sampled from, except where it was a `point` [N] mass; without an old
    token (`has_old` [N]) x ~ p. `keep` and `u` [N] are uniforms that no other sample of the position has used.
    """
    at = q.gather(-1, old[:, None])[:, 0].masked_fill(point, 1.0)
    stays = has_old & (keep * at < p.gather(-1, old[:, None])[:, 0])
    removed = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, old[:, None], True)
    rest = torch.where(point[:, None], without(p, removed), residual(p, q))
    return torch.where(stays, old, sample(torch.where(has_old[:, None], rest, p), u))


def gumbel_sample(p: Tensor, u: Tensor) -> Tensor:
    """argmax(log p + G) for p [..., V], with Gumbel noise from uniforms `u` [..., V]; [...] int64.

    With the same noise, a slightly changed distribution mostly gives the same token.
    """
    return (wide(p).log() + gumbel(u)).argmax(-1)
