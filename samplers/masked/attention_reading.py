"""Brings together what the groups of rows of a forward attend to, as maps by position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.hidden import Hidden

from .attention_maps import AttentionMaps, AttentionSpec
from .canvas import Canvas
from .layout import Group
from .visible import VisiblePositions


class AttentionReading:
    """The maps of a forward, brought together from its groups of rows."""

    def __init__(
        self, spec: AttentionSpec, canvas: Canvas, count: int, shadow: int, visible: VisiblePositions | None
    ) -> None:
        """`count` are the model's layers; `shadow` queries of a group stand behind those of the canvas.

        With `visible` positions have slots of other numbers.
        """
        self.spec, self.canvas, self.count, self.shadow, self.visible = spec, canvas, count, shadow, visible
        self._parts: list[tuple[Tensor, Mapping[int, Tensor]]] = []

    def begin(self) -> None:
        """Before a forward."""
        self._parts.clear()

    def add(self, hidden: Hidden, group: Group) -> None:
        """The forward of one group; its first rows are the half with the condition."""
        count, length, plan = len(group.want), self.canvas.length, hidden.plan
        if plan.attending is None:
            width = plan.width - self.shadow
            positions = plan.positions[:count, :width]
            positions = torch.where(positions < 0, length, positions)
        else:
            window = self.canvas.window
            own = window if group.rows is None else window[torch.from_numpy(group.rows).to(window.device)]
            width = own.shape[1]
            positions = torch.where(plan.attending[:count] < 0, length, own)
        device = positions.device
        slots = None
        if self.visible is not None:
            own_slots = self.visible.slots if group.rows is None else self.visible.slots[group.rows]
            slots = torch.from_numpy(own_slots[:, :length]).to(device)
        maps = {
            layer: _as_columns(each[:count, :width].to(device), length, slots)
            for layer, each in hidden.attention.items()
        }
        self._parts.append((positions, maps))

    def joined(self, order: Tensor | None) -> AttentionMaps:
        """The maps of all live rows; `order` is the index of each in the groups in turn, None with one group."""
        if order is None:
            ((positions, maps),) = self._parts
            return AttentionMaps(positions, maps, self.count)
        most, length = max(positions.shape[1] for positions, _ in self._parts), self.canvas.length
        positions = torch.cat([pad(each, (0, most - each.shape[1]), value=length) for each, _ in self._parts])
        layers = {
            layer: torch.cat([pad(maps[layer], (0, 0, 0, most - maps[layer].shape[1])) for _, maps in self._parts])
            for layer in self.spec.layers
        }
        return AttentionMaps(positions[order], {layer: each[order] for layer, each in layers.items()}, self.count)


def _as_columns(weights: Tensor, length: int, positions: Tensor | None) -> Tensor:
    """Weights [n, M, S] over slots as columns [n, M, L + 1] of a canvas; slots from L on are no positions of it.

    `positions` [n, L] is the slot of each, -1 for none; None: its number.
    """
    slots = min(weights.shape[-1], length)
    columns = pad(weights[..., :slots], (0, length + 1 - slots))
    if positions is None:
        return columns
    index = torch.where(positions < 0, length, positions)[:, None].expand(-1, weights.shape[1], -1)
    return pad(columns.gather(-1, index), (0, 1))
