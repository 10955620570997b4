"""The random numbers of one round of the verify loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..ops.inverse_cdf import sample
from ..rng import Source


@dataclass(frozen=True, slots=True)
class RoundUniforms:
    """Uniforms keyed by row seed, round, node and purpose, so that a row gets the same ones alone and in any batch."""

    source: Source
    rows: np.ndarray  # [B] index in the request
    rounds: np.ndarray  # [B]
    device: torch.device

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return self.draw_uniform("accept", node)

    def accepts(self, width: int) -> Tensor:
        where = torch.arange(width, device=self.device).expand(len(self.rows), width)
        return self.source.uniform(self.rows, self.rounds, where, "accept")

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        return sample(weights, self.draw_uniform(purpose, node))

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        return self.source.uniform(
            self.rows, np.zeros_like(self.rounds) if fixed else self.rounds, positions, purpose, width
        )

    def draw_uniform(self, purpose: str, node: int = 0) -> Tensor:
        where = torch.full((len(self.rows), 1), node, device=self.device)
        return self.source.uniform(self.rows, self.rounds, where, purpose)[:, 0]
