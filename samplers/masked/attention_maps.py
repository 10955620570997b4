"""What positions attend to in a forward, where a stage reads it: rows and columns by position, one map a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Which attention a stage reads."""

    layers: tuple[int, ...]  # of the model's
    every: bool = False  # of all positions that a forward queries, and not of the block's alone


def united(specs: Iterable[AttentionSpec | None]) -> AttentionSpec | None:
    """What several stages read together; None if none reads any."""
    each = [spec for spec in specs if spec is not None]
    layers = sorted({layer for spec in each for layer in spec.layers})
    return AttentionSpec(tuple(layers), any(spec.every for spec in each)) if each else None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """What M positions of each row attended to in one forward, meaned over the heads.

    Column L of a map is the canvas's bin, which nothing attends to. Under guidance the maps are those of the half with
    the condition.

    Attributes:
        positions: [B, M] int64, L pads.
        layers: layer -> [B, M, L + 1] float32, rows in the order of `positions`; each sums to 1 over what is visible.
        count: the model's layers.
    """

    positions: Tensor
    layers: Mapping[int, Tensor]
    count: int

    @property
    def known(self) -> Tensor:
        """[B, M] bool: the rows that are not padding."""
        bin_column = next(iter(self.layers.values())).shape[-1] - 1
        return self.positions < bin_column

    def mean(self, spec: AttentionSpec | None) -> Tensor:
        """[B, M, L + 1] the mean over the layers that a stage reads."""
        assert spec is not None, "the stage says which layers it reads"
        each = [self.layers[layer] for layer in spec.layers]
        return each[0] if len(each) == 1 else torch.stack(each).mean(0)

    def rows_at(self, positions: Tensor, values: Tensor) -> Tensor:
        """Rows of `values` [B, M, ...] at `positions` [B, W] -> [B, W, ...], 0 where a position is not among them."""
        match, index = ((positions[:, :, None] == self.positions[:, None]) & self.known[:, None]).max(2)
        rows = torch.arange(len(index), device=index.device)[:, None]
        return values[rows, index] * match[..., None]

    def among(self, positions: Tensor, values: Tensor) -> Tensor:
        """[B, W, W] how much each of `positions` [B, W] attends to each, by `values` [B, M, L + 1]."""
        rows = self.rows_at(positions, values)
        return rows.gather(2, positions[:, None].expand(-1, rows.shape[1], -1))

    def take(self, rows: Tensor) -> AttentionMaps:
        """Those of these rows [n], in this order."""
        layers = {layer: each[rows] for layer, each in self.layers.items()}
        return AttentionMaps(self.positions[rows], layers, self.count)
