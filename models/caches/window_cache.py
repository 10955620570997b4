"""A cache of a text's first and last tokens: the memory of a row does not grow with its text.

Efficient Streaming Language Models with Attention Sinks, https://arxiv.org/abs/2309.17453
LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models, https://arxiv.org/abs/2308.16137

    a query at position p sees slot s  iff  s < sink  or  s > p - window
    slot s of the text stands in slot s, or from `sink` on in slot sink + (s - sink) mod R

R is the window and room for the nodes of a draft, so that no query of a round loses what it sees to one after it. A
prompt that does not fit is attended to block by block as it is fed, and of it only what stays visible is stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import CacheError
from ..kernels.attention import visible_slots
from ..plan import Plan, Visible
from .kv_cache import KVCache, Reader, Slots
from .window_readers import Capped, CappedReader, Far, PromptReader


class WindowCache(KVCache):
    """K and V of the first `sink` slots of each row and of its last ones."""

    def __init__(
        self, plain: KVCache, *, sink: int, window: int, nodes: int, reach: int, far: Far | None = None
    ) -> None:
        """Takes the storage of `plain`, which has sink + window + nodes - 1 slots, for texts of up to `reach` slots.

        `nodes` are the most that a forward feeds after the prompt. `far` gives the positions of sinks from before a
        query's window, to which the query attends as from position `window`; None: as from its own position.
        """
        vars(self).update(vars(plain))
        self.longest = reach
        self.sink, self.window, self.nodes, self.far = sink, window, nodes, far

    @property
    def ring(self) -> int:
        """R: slots after the sinks."""
        return self.capacity - self.sink

    def layout(self, plan: Plan) -> Plan:
        if self._all_fits(plan):
            return plan
        if plan.width > self.nodes:
            return self._of_prompt(plan)
        slots, lengths = self._own(plan.slots), plan.lengths.clamp(max=self.capacity)
        here: dict[str, Any] = {"slots": slots, "lengths": lengths, "span": None, "stored": None, "uniform": None}
        if plan.width == plan.batch == self.nodes == 1 and plan.rows is None and plan.slots.device.type == "cpu":
            at = int(slots[0, 0])  # the only query sees the whole ring
            here |= {"visible": Visible.bidirectional(), "uniform": int(lengths[0]), "stored": (at, at + 1)}
        else:
            here["visible"] = Visible.mask(self._visible(plan))
        return replace(plan, **here)

    def slots(self, plan: Plan, *, in_parts: bool = False) -> Slots:
        if plan.width > max(self.sink + self.window, self.nodes):
            return _PromptSlots(self, plan)
        return super().slots(plan, in_parts=in_parts)

    def reader(self, plan: Plan, rope: Any, device: torch.device) -> Reader | None:
        fits = self._all_fits(plan)
        if fits and (self.far is None or _top(plan) <= self.window):
            return None
        capped = None
        if self.far is not None:
            positions = plan.positions.clamp(min=0).to(device)
            capped = Capped.at(positions, rope, sink=self.sink, window=self.window, far=self.far)
        if not fits and plan.width > self.nodes:
            return PromptReader(self.sink, self.window, capped)
        return None if capped is None else CappedReader(capped)

    def move(self, source: Tensor, target: Tensor, rows: Tensor | None = None) -> None:
        super().move(self._own(source), self._own(target), rows)

    def _of_prompt(self, plan: Plan) -> Plan:
        """The plan of a prompt that does not fit: its reader attends to all keys, only slots that stay are stored."""
        order = torch.arange(plan.width, device=plan.slots.device)
        if plan.slots.device.type == "cpu" and bool(((plan.slots != order) & (plan.slots >= 0)).any()):
            raise CacheError(
                f"a forward of {plan.width} tokens after the prompt does not fit into a window of {self.window}",
                "feed the prompt in one forward, and only drafts after it",
            )
        stays = (plan.slots < self.sink) | (plan.slots >= plan.lengths[:, None] - self.ring)
        return replace(
            plan,
            slots=torch.where(stays & (plan.slots >= 0), self._own(plan.slots), -1),
            visible=Visible.bidirectional(),
            lengths=torch.full_like(plan.lengths, plan.width),
            uniform=plan.width,
            span=None,
            stored=None,
        )

    def _all_fits(self, plan: Plan) -> bool:
        """Whether no slot has been left out yet, so that slots here and in the text are the same."""
        return _top(plan) <= self.sink + self.window

    def _own(self, slots: Tensor) -> Tensor:
        """The slots of this cache that hold the text's slots; -1 stays -1."""
        return torch.where(slots < self.sink, slots, self.sink + (slots - self.sink) % self.ring)

    def _texts(self, lengths: Tensor) -> Tensor:
        """[B, C]: the text's slot in each slot of this cache, for rows of `lengths` [B]; -1: none."""
        order = torch.arange(self.capacity, device=lengths.device)
        behind = lengths[:, None] - 1 - order
        rounds = torch.where(order < self.sink, 0, behind.div(self.ring, rounding_mode="floor"))
        return torch.where(behind < 0, -1, order + rounds * self.ring)

    def _visible(self, plan: Plan) -> Tensor:
        """[B, Q, C] bool: which of this cache's slots each query of `plan` attends to; the plan has text slots."""
        text = self._texts(plan.lengths)[:, None]
        first = torch.where(plan.slots < 0, self.reach, plan.slots).amin(1)
        node = (text - first[:, None, None]).clamp(-1, plan.width - 1)
        index = node.clamp(min=0).expand(-1, plan.width, -1)
        dense = plan.visible.from_first_slot().dense
        if dense is not None:
            within = text < dense.shape[-1]
            visible = within & dense.gather(2, text.clamp(0, dense.shape[-1] - 1).expand(-1, plan.width, -1))
        else:
            shift = first[:, None]
            local = replace(
                plan,
                positions=torch.where(plan.positions < 0, -1, plan.positions - shift),
                slots=torch.where(plan.slots < 0, -1, plan.slots - shift),
                lengths=plan.lengths - first,
                visible=plan.visible
                if plan.visible.base is None
                else replace(plan.visible, base=plan.visible.base - first),
            )
            visible = (node < 0) | visible_slots(local, plan.width).gather(2, index)
        position = torch.where(node < 0, text, plan.positions[:, None].expand(-1, plan.width, -1).gather(2, index))
        near = (text < self.sink) | (position > plan.positions[..., None] - self.window)
        return visible & near & (text >= 0)


class _PromptSlots(Slots):
    """Stores the slots of a prompt that stay; its queries attend to all keys of the prompt."""

    def __init__(self, cache: KVCache, plan: Plan) -> None:
        super().__init__(cache, plan)
        self.views = self.start = None

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        super().write(layer, k, v)
        return k, v


def _top(plan: Plan) -> int:
    """The number of slots of the longest row."""
    return plan.uniform if plan.uniform is not None else int(plan.on_host(plan.lengths).max())
