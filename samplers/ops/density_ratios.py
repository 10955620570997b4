"""Ratios of two heads' densities at a drafted vector, as continuous speculative decoding is published.

Continuous Speculative Decoding for Autoregressive Image Generation, https://arxiv.org/abs/2411.11925

    ratio(x) = exp(S) prod s_q / prod s_p  exp(-|x - mu_p|^2 / 2 (tau s_p)^2) / exp(-|x - mu_q|^2 / 2 (tau s_q)^2)
    S = sum over the transitions before the last one of log s_p - log s_q;  derived: of log s_q - log s_p
    share(x) = max(0, 1 - 1 / ratio(x)), tau = 1: how likely a proposal x ~ p replaces a rejected draft

Letters: N tokens, d numbers of a token, M tries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .denoising_paths import DenoisingPath


@dataclass(frozen=True, slots=True, eq=False)
class LastTransition:
    """The distribution of a path's last transition, and the deviations of earlier transitions."""

    mean: Tensor  # [N, d]
    log_deviation: Tensor  # [N, d]
    others: Tensor  # [N, d]: the sum of the log deviations of earlier transitions

    def __getitem__(self, which: Tensor) -> LastTransition:
        """The transitions of these tokens only."""
        return LastTransition(self.mean[which], self.log_deviation[which], self.others[which])


def last_transition(path: DenoisingPath) -> LastTransition:
    """The last transition of each path."""
    return LastTransition(path.means[-1], path.log_deviations[-1], path.log_deviations[:-1].double().sum(0))


def log_ratio(
    x: Tensor, target: LastTransition, draft: LastTransition, *, tau: float = 1.0, derived: bool = False
) -> Tensor:
    """[..., N] float64: the logarithm of the density ratio at x [..., N, d]."""
    others = (target.others.double() - draft.others.double()) * (-1 if derived else 1)
    narrow = draft.log_deviation.double() - target.log_deviation.double()
    return _kernel(x, target, tau) - _kernel(x, draft, tau) + (others + narrow).sum(-1)


def _kernel(x: Tensor, distribution: LastTransition, tau: float) -> Tensor:
    gap = (x.double() - distribution.mean.double()) * torch.exp(-distribution.log_deviation.double()) / tau
    return -0.5 * gap.square().sum(-1)


def share(log_ratio: Tensor) -> Tensor:
    """[...] float64: the share of the target's density above the draft's, 1 - exp(-log_ratio), at least 0."""
    return -torch.expm1(-log_ratio.clamp(min=0))


def first_accepted(proposals: Tensor, accepted: Tensor, otherwise: Tensor) -> Tensor:
    """[N, d]: each token's first proposal of [M, N, d] that is `accepted` [M, N], else its `otherwise` [N, d]."""
    first = accepted.int().argmax(0)
    chosen = proposals[first, torch.arange(len(otherwise), device=first.device)]
    return torch.where(accepted.any(0)[:, None], chosen, otherwise)


def last_accepted(proposals: Tensor, accepted: Tensor) -> Tensor:
    """[N, d], as published: tries end once every token has an accepted one; each token gets its last one, or zeros.

    Arguments as of `first_accepted`.
    """
    end = int((accepted.cumsum(0) > 0).all(1).logical_not().sum())  # the last try
    number = torch.arange(len(accepted), device=accepted.device)[:, None]
    last = torch.where(accepted & (number <= end), number, -1).amax(0)
    chosen = proposals[last.clamp(min=0), torch.arange(accepted.shape[1], device=last.device)]
    return torch.where(last[:, None] >= 0, chosen, torch.zeros_like(chosen))
