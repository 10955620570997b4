"""The states of a draft's nodes behind the target's first layers, where the drafter has run these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class EarlyStates:
    """The first `layers` layers, run on every node by the drafter; their K/V are where the verify pass reads them."""

    layers: int
    states: Tensor  # [B, T, E] inputs of the next layer
    taps: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> [B, T, E] outputs of more of these layers

    def outputs(self, width: int) -> dict[int, Tensor]:
        """Layer -> [B, width, E] its outputs, as far as they are known; only those of real nodes mean anything."""
        known = {**self.taps, self.layers - 1: self.states}
        return {layer: states[:, :width] for layer, states in known.items()}
