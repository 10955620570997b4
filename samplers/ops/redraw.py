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


def reuse(
    p: Tensor, old: Tensor, q: Tensor, point: Tensor, has_old: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Which old tokens [N] keep their position because p[old] > `least`, and the distributions that follow from that.

    Arguments as for `coupled_sample`. Whether a token stays depends on the token itself: of all that stand at a
    position, those that stay and those that x ~ p replaces,

        q' = q [p > least] + (1 - sum q [p > least]) p

    is the distribution, and q [p <= least], normalized, that of the old tokens that do not stay.

    Returns:
        [N] bool, which stay; [N, V] the distribution of those that do not; [N, V] q', which is p where `old` is a
        `point` mass that does not stay, and without an old token.
    """
    high = p > least
    stays = has_old & high.gather(-1, old[:, None])[:, 0]
    share = torch.where(high, q, 0)
    left = (1 - share.sum(-1, keepdim=True)).clamp(min=0)
    rest = torch.where(high, 0, q) / left.clamp(min=torch.finfo(q.dtype).tiny)
    mixed = (has_old & ~point)[:, None]
    return stays, torch.where(mixed, rest, q), torch.where(mixed, share + left * p, p)


def gumbel_sample(p: Tensor, u: Tensor) -> Tensor:
    """argmax(log p + G) for p [..., V], with Gumbel noise from uniforms `u` [..., V]; [...] int64.

    With the same noise, a slightly changed distribution mostly gives the same token.
    """
    return (wide(p).log() + gumbel(u)).argmax(-1)
