"""Layers that run at the same time, one per device, on the same input.

EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization, https://arxiv.org/abs/2502.02493

    h' = h + sum_i (attn_i(h) + mlp_i(h))  over a group of N consecutive layers, in place of one layer after the other

The first layer runs alone, and so does the only layer of a group. The result is an approximation, for drafting only;
keys and values of such a forward are approximate, too, and must be computed again.

The rule has not been compared with the authors' code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .layer import DecoderLayer, LayerPass

SERIAL = 1  # first layers, which run one after the other


def group_of(layer: int, layers: int, size: int) -> range:
    """The layers that run together with `layer` of a stack of `layers`, itself included.

    >>> [list(group_of(layer, 6, 3)) for layer in (0, 2, 5)]
    [[0], [1, 2, 3], [4, 5]]
    """
    if layer < SERIAL:
        return range(layer, layer + 1)
    first = layer - (layer - SERIAL) % size
    return range(first, min(first + size, layers))


def stages(layers: int, size: int) -> int:
    """The number of sequential steps of a stack of `layers` in groups of `size`.

    >>> [stages(30, size) for size in (1, 2, 3, 4)]
    [30, 16, 11, 9]
    """
    alone = min(layers, SERIAL)
    return alone + -(-(layers - alone) // size)


class LayerGroups:
    """Runs the layers of one forward in groups of `size`."""

    def __init__(self, layers: int, size: int) -> None:
        self.layers, self.size = layers, size
        self.entry: Tensor | None = None  # the states that the current group reads

    def through(self, layer: DecoderLayer, h: Tensor, step: LayerPass, index: int) -> Tensor:
        """Adds to states h [B * Q, E] the change that the layer at `index` computes from its group's input."""
        group = group_of(index, self.layers, self.size)
        if len(group) == 1:
            return layer.forward(h, step, index)
        if index == group.start:
            self.entry = h
        assert self.entry is not None, "a group begins with its first layer"
        return h + layer.changes(self.entry, step, index)
