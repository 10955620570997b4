"""Drawing the tokens of a window anew when their laws have changed, so that most of them stay."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rng import gumbel, wide
from ..speculative.uniforms import sample_index
from .verification import residual, without


def coupled(p: Tensor, old: Tensor, q: Tensor, point: Tensor, had: Tensor, keep: Tensor, u: Tensor) -> Tensor:
    """A draw from each law p [N, V] that is the `old` [N] one as often as can be.

        old stays  iff  keep q[old] < p[old],  else  x ~ norm([p - q]+),  for a point mass p without old

    `q` [N, V] is the law that `old` was drawn from, unless it was a `point` [N] mass; where none `had` [N] been drawn
    x ~ p. `keep` and `u` [N] are uniforms that no other draw of the place has used.
    """
    at = q.gather(-1, old[:, None])[:, 0].masked_fill(point, 1.0)
    stays = had & (keep * at < p.gather(-1, old[:, None])[:, 0])
    gone = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, old[:, None], True)
    left = torch.where(point[:, None], without(p, gone), residual(p, q))
    return torch.where(stays, old, sample_index(torch.where(had[:, None], left, p), u))


def perturbed(p: Tensor, u: Tensor) -> Tensor:
    """argmax(log p + G) for p [..., V], with Gumbel noise from uniforms `u` [..., V]; [...] int64.

    The same noise under a law that has changed little mostly gives the same token.
    """
    return (wide(p).log() + gumbel(u)).argmax(-1)
