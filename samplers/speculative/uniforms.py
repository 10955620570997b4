"""The random numbers of one round of the verify loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..rng import Source, wide


@dataclass(frozen=True, slots=True)
class RoundUniforms:
    """Uniforms keyed by row seed, round, node and purpose, so that a row draws the same alone and in any batch."""

    source: Source
    rows: np.ndarray  # [B] index in the request
    rounds: np.ndarray  # [B]
    device: torch.device

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return self.number("accept", node)

    def accepts(self, width: int) -> Tensor:
        where = torch.arange(width, device=self.device).expand(len(self.rows), width)
        return self.source.uniform(self.rows, self.rounds, where, "accept")

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        return sample_index(weights, self.number(purpose, node))

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        return self.source.uniform(
            self.rows, np.zeros_like(self.rounds) if fixed else self.rounds, positions, purpose, width
        )

    def number(self, purpose: str, node: int = 0) -> Tensor:
        where = torch.full((len(self.rows), 1), node, device=self.device)
        return self.source.uniform(self.rows, self.rounds, where, purpose)[:, 0]


def sample_index(weights: Tensor, u: Tensor) -> Tensor:
    """[...] int64: an index in proportion to `weights` [..., V], at least 0, by the inverse CDF of uniforms `u` [...].

    >>> sample_index(torch.tensor([[0.2, 0.0, 0.6, 0.2]] * 3), torch.tensor([0.1, 0.2, 0.79]).double()).tolist()
    [0, 2, 2]
    """
    mass = wide(weights).cumsum(-1)
    whole = mass[..., -1:].contiguous()
    found = torch.searchsorted(mass, u[..., None] * whole, right=True)
    # The last index with any weight, where the sum is complete, catches what rounding leaves over; of weights that are
    # no numbers, which the loop refuses afterwards, there is none.
    last = torch.searchsorted(mass, whole).clamp(max=weights.shape[-1] - 1)
    return torch.minimum(found, last)[..., 0]
