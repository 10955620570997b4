"""The denoising schedule of a diffusion head: a cosine schedule, respaced, whose variance is learned within bounds.

Improved Denoising Diffusion Probabilistic Models, https://arxiv.org/abs/2102.09672

    alpha_bar(u) = cos^2((u + .008) / 1.008 * pi / 2),  beta_i = min(1 - alpha_bar((i+1)/n) / alpha_bar(i/n), .999)
    respaced to T steps: indices round(i (n-1) / (T-1)); beta_t = 1 - alpha_bar_t / alpha_bar_(t-1), over those kept
    mean of x_(t-1): (beta_t sqrt(alpha_bar_(t-1)) x0 + (1 - alpha_bar_(t-1)) sqrt(alpha_t) x_t) / (1 - alpha_bar_t)
    log variance: f log beta_t + (1 - f) log beta~_t,  f in [0, 1] from the network; beta~ of index 0 is that of index 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError

TRAINED = 1000  # steps that heads are trained with


@dataclass(frozen=True, slots=True, eq=False)
class Denoising:
    """Constants of T transitions, [T] each, float64 on the CPU; index 0 is the last transition."""

    timesteps: Tensor  # int64: which of the TRAINED steps each is; the network's input
    betas: Tensor
    alpha_bar: Tensor
    from_noise: Tensor  # x0 = x_t / sqrt(alpha_bar) - from_noise * noise
    of_clean: Tensor  # the mean's factor of x0 ...
    of_point: Tensor  # ... and of x_t
    log_most: Tensor  # log variance at f = 1 ...
    log_least: Tensor  # ... and at f = 0

    def __len__(self) -> int:
        return len(self.betas)


def denoising(steps: int, trained: int = TRAINED) -> Denoising:
    """The schedule over `steps` of the trained ones. Raises ModelError unless 2 <= steps <= trained."""
    if not 2 <= steps <= trained:
        raise ModelError(f"a head takes 2 to {trained} steps, got {steps}", "MAR is published with 100")
    every = np.cumprod(1 - _cosine(trained))
    stride = (trained - 1) / (steps - 1)
    timesteps = np.array([round(stride * i) for i in range(steps)])
    alpha_bar = every[timesteps]
    before = np.append(1.0, alpha_bar[:-1])
    betas = 1 - alpha_bar / before
    # The cumulative product of the new alphas, as implementations compute it: the last ones are tiny differences.
    alpha_bar = np.cumprod(1 - betas)
    before = np.append(1.0, alpha_bar[:-1])
    least = betas * (1 - before) / (1 - alpha_bar)
    least[0] = least[1]
    constants = {
        "betas": betas,
        "alpha_bar": alpha_bar,
        "from_noise": np.sqrt(1 / alpha_bar - 1),
        "of_clean": betas * np.sqrt(before) / (1 - alpha_bar),
        "of_point": (1 - before) * np.sqrt(1 - betas) / (1 - alpha_bar),
        "log_most": np.log(betas),
        "log_least": np.log(least),
    }
    tensors = {name: torch.from_numpy(value) for name, value in constants.items()}
    return Denoising(torch.from_numpy(timesteps), **tensors)


def _cosine(steps: int) -> np.ndarray:
    def alpha_bar(share: float) -> float:
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    return np.array([min(1 - alpha_bar((i + 1) / steps) / alpha_bar(i / steps), 0.999) for i in range(steps)])
