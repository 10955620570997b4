"""Ratios of two heads' densities at a drafted vector, as continuous speculative decoding is published.

Continuous Speculative Decoding for Autoregressive Image Generation, https://arxiv.org/abs/2411.11925

    ratio(x) = exp(S) prod s_q / prod s_p  exp(-|x - mu_p|^2 / 2 (tau s_p)^2) / exp(-|x - mu_q|^2 / 2 (tau s_q)^2)
    S = sum over the transitions before the last one of log s_p - log s_q;  derived: of log s_q - log s_p
    share(x) = max(0, 1 - 1 / ratio(x)), tau = 1: how likely a proposal x ~ p stands in for a rejected draft

Letters: N tokens, d numbers of a token, M tries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .denoising_paths import Path


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """The law of a path's last transition, and how wide those before it were."""

    mean: Tensor  # [N, d]
    log_deviation: Tensor  # [N, d]
    others: Tensor  # [N, d]: log deviations of the transitions before it, summed


def ending(path: Path) -> Ending:
    """Of each path."""
    return Ending(path.means[-1], path.log_deviations[-1], path.log_deviations[:-1].double().sum(0))


def log_ratio(x: Tensor, target: Ending, draft: Ending, *, tau: float = 1.0, derived: bool = False) -> Tensor:
    """[..., N] float64: the logarithm of `ratio` at x [..., N, d]."""
    others = (target.others.double() - draft.others.double()) * (-1 if derived else 1)
    narrow = draft.log_deviation.double() - target.log_deviation.double()
    return _kernel(x, target, tau) - _kernel(x, draft, tau) + (others + narrow).sum(-1)


def _kernel(x: Tensor, distribution: Ending, tau: float) -> Tensor:
    gap = (x.double() - distribution.mean.double()) * torch.exp(-distribution.log_deviation.double()) / tau
    return -0.5 * gap.square().sum(-1)


def share(log_ratio: Tensor) -> Tensor:
    """[...] float64: how much of the target's density the draft's leaves, 1 - exp(-log_ratio), at least 0."""
    return -torch.expm1(-log_ratio.clamp(min=0))


def first_taken(proposals: Tensor, taken: Tensor, otherwise: Tensor) -> Tensor:
    """[N, d]: of proposals [M, N, d] each token's first that is `taken` [M, N], `otherwise` [N, d] where none is."""
    first = taken.int().argmax(0)
    chosen = proposals[first, torch.arange(len(otherwise), device=first.device)]
    return torch.where(taken.any(0)[:, None], chosen, otherwise)


def last_taken(proposals: Tensor, taken: Tensor) -> Tensor:
    """[N, d], as published: tries end once every token had one that is taken, and each one's last counts, or zeros.

    Arguments as of `first_taken`.
    """
    tries = len(taken)
    over = int((taken.cumsum(0) > 0).all(1).logical_not().sum())  # tries before the one that ends it
    number = torch.arange(tries, device=taken.device)[:, None]
    last = torch.where(taken & (number <= over), number, -1).amax(0)
    chosen = proposals[last.clamp(min=0), torch.arange(taken.shape[1], device=last.device)]
    return torch.where(last[:, None] >= 0, chosen, torch.zeros_like(chosen))
