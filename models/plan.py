"""The input of one forward: tokens, their positions and slots, what they see, and which predictions are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .errors import ModelError
from .host_transfer import download

Kind = Literal["bidirectional", "causal", "segments", "tree", "mask"]

_COMPARE_LIMIT = 1 << 20  # above this many pairs, looking positions up by sorting is cheaper than comparing all


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """Which valid slots a query sees, made by a constructor; slots at or past a row's length are never seen."""

    kind: Kind
    block: int | None = None  # segments: width of a block, counted from position 0
    ids: Tensor | None = None  # segments: [B, C] segment of each slot
    parents: Tensor | None = None  # tree: [T] or [B, T] parent of each query, -1 for a root
    base: Tensor | None = None  # tree: [B] slots below this are seen by every node
    dense: Tensor | None = None  # mask: [B, Q, C] bool
    before: int = 0  # mask: every query sees the slots below this; column 0 of the mask is this slot
    begin: Tensor | None = None  # segments: [B] first slot of the canvas, from which windows are counted

    @staticmethod
    def bidirectional() -> Visible:
        """Every query sees every valid slot."""
        return _BIDIRECTIONAL

    @staticmethod
    def causal() -> Visible:
        """A query at position p sees the slots 0..p."""
        return _CAUSAL

    @staticmethod
    def segments(block: int | None = None, ids: Tensor | None = None, begin: Tensor | None = None) -> Visible:
        """Block-causal: slot s is seen from position p iff its block is not later than p's.

        `block` lays blocks of that width from position 0; `ids` [B, C] names the segment of each slot instead (a query
        belongs to the segment of the slot it is stored in). `begin` [B]: a canvas stands from there on; for all of its
        queries a sliding window ends as far before that.
        """
        if (block is None) == (ids is None):
            raise ModelError(
                "segments: give either block or ids", "write Visible.segments(32) for blocks of 32 positions"
            )
        if block is not None and block < 1:
            raise ModelError(f"segments: block must be at least 1, got {block}")
        return Visible("segments", block=block, ids=ids, begin=begin)

    @staticmethod
    def tree(parents: Tensor, base: Tensor) -> Visible:
        """Query i, stored at base + i, sees the slots below `base` [B], its ancestors and itself.

        `parents` [T] or [B, T] names each query's parent by index, -1 for a root; a parent stands before its children.
        """
        return Visible("tree", parents=parents, base=base)

    @staticmethod
    def mask(mask: Tensor, before: int = 0) -> Visible:
        """Query i of row b sees slot s iff mask[b, i, s] ([B, Q, C] bool; slots past its last column are not seen).

        With `before`, it sees all slots below that, and slot before + s iff mask[b, i, s].
        """
        if mask.dtype != torch.bool or mask.dim() != 3:
            raise ModelError(f"mask: expected a bool tensor [B, Q, C], got {mask.dtype} {list(mask.shape)}")
        return Visible("mask", dense=mask, before=before)

    def from_first_slot(self) -> Visible:
        """The same pattern, with a mask that begins at slot 0."""
        if self.dense is None or not self.before:
            return self
        return Visible.mask(pad(self.dense, (self.before, 0), value=True))


_BIDIRECTIONAL = Visible("bidirectional")
_CAUSAL = Visible("causal")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One forward: B rows of Q queries each, over a cache addressed by slot."""

    tokens: Tensor  # [B, Q] int64 ids fed; -1 with `soft`: no token, the input is the soft row alone
    positions: Tensor  # [B, Q] int64 absolute position of each query; -1 pads a ragged row
    slots: Tensor  # [B, Q] int64 slot of each query's K/V; = positions except for tree drafts
    visible: Visible
    lengths: Tensor  # [B] int64 slots valid per row once this forward has written
    want: Tensor  # [B, K] int64 query indices whose prediction is wanted; -1 pads
    soft: Tensor | None = None  # [B, Q, E] added to the embeddings; the incoming states when `layers` starts above 0
    layers: slice | None = None  # the layers that run; None: all
    skip: frozenset[tuple[int, str]] = frozenset()  # (layer, "attn" | "mlp") sub-blocks left out
    parallel: int = 1  # number of consecutive layers that read the same states; their changes are added up
    hidden: tuple[int, ...] = ()  # layers whose outputs are kept; -1 is the embedding
    rows: Tensor | None = None  # [B] int64 cache row of each plan row; None: row i is cache row i
    uniform: int | None = None  # host knowledge: every row's length is this
    span: tuple[int, int] | None = None  # host knowledge: every row's positions and slots are arange(start, stop)
    stored: tuple[int, int] | None = None  # host knowledge: the same of every row's slots alone
    origin: Tensor | None = None  # [B] int64 position of the first token of each row's image; None: 0
    similar: Tensor | None = None  # [B] bool: rows whose layers compute only a share of the queries, with a ReuseCache
    narrow: bool = False  # only the outputs `want` are needed: the last layer may skip the rest
    attention: tuple[int, ...] = ()  # layers whose attention is kept: see `Hidden.attention`
    attending: Tensor | None = None  # [B, M] int64 the queries whose attention is kept, -1 pads; None: all
    # Computes tensors [B, K, ...] from the float32 logits [B, K, V] of `want`. A captured forward runs it and returns
    # them as `Hidden.made`; others ignore it. Equal functions compute the same.
    tail: Callable[[Tensor], tuple[Tensor, ...]] | None = None
    queries: int = 0  # number of queries kept per layer, ending at a row's last wanted one: see `Hidden.queries`
    known: tuple[tuple[Tensor, np.ndarray], ...] = ()  # host knowledge: tensors of this plan and their values
    fixed: bool = False  # the forward will be replayed with other values in these tensors: the host must not read any

    @property
    def batch(self) -> int:
        """Rows B."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """Queries per row Q, padding included."""
        return self.tokens.shape[1]

    def on_host(self, tensor: Tensor) -> np.ndarray:
        """The values of one of the plan's tensors; of a device's, the host waits for those that are not `known`."""
        for own, values in self.known:
            if own is tensor:
                return values
        return download(tensor)

    @property
    def slot_span(self) -> tuple[int, int] | None:
        """(start, stop), if the host knows that the slots of all rows are arange(start, stop), as for a tree."""
        if self.stored is not None:
            return self.stored
        if self.span is None and self.uniform is not None and self.visible.parents is not None:
            return self.uniform - self.tokens.shape[1], self.uniform
        return self.span

    @staticmethod
    def full(tokens: Tensor, visible: Visible, lengths: Tensor | None = None) -> Plan:
        """A plan that wants every position of `tokens` [B, L]; with `lengths` [B], the rest of a row is padding."""
        batch, width = tokens.shape
        order = torch.arange(width, device=tokens.device).expand(batch, width)
        if lengths is None:
            whole = torch.full((batch,), width, dtype=torch.int64, device=tokens.device)
            return Plan(tokens, order, order, visible, whole, order, uniform=width, span=(0, width))
        order = torch.where(order < lengths[:, None], order, -1)
        return Plan(tokens, order, order, visible, lengths, order)

    def behind(self, count: int) -> Plan:
        """The plan over the slots from `count` on, renumbered from 0; its queries write no slots before.

        Raises ModelError for patterns that are not causal, a tree or a mask.
        """
        visible = self.visible
        if visible.kind not in ("causal", "tree", "mask"):
            raise ModelError(f"the first {count} slots cannot be attended to separately under {visible.kind} attention")
        if visible.base is not None:
            visible = replace(visible, base=visible.base - count)
        elif (dense := visible.from_first_slot().dense) is not None:
            visible = Visible.mask(dense[..., count:])
        return replace(
            self,
            positions=torch.where(self.positions < 0, -1, self.positions - count),
            slots=torch.where(self.slots < 0, -1, self.slots - count),
            visible=visible,
            lengths=self.lengths - count,
            uniform=None if self.uniform is None else self.uniform - count,
            span=None if self.span is None else (self.span[0] - count, self.span[1] - count),
            stored=None if self.stored is None else (self.stored[0] - count, self.stored[1] - count),
        )

    def before(self, count: int) -> Tensor | None:
        """[B, Q, count] bool: which of the first `count` slots each query sees, all being valid and before it.

        None: all of them, as it always is but for masks.
        """
        if self.visible.dense is None or self.visible.before >= count:
            return None
        dense = self.visible.from_first_slot().dense
        assert dense is not None
        first = pad(dense, (0, count - dense.shape[-1])) if dense.shape[-1] < count else dense[..., :count]
        return None if bool(first.all()) else first

    def at(self, positions: Tensor) -> Tensor:
        """Query index of each of `positions` [B, K], -1 where the plan does not compute it -> [B, K] int64."""
        if self.span is not None:
            start, stop = self.span
            return torch.where((positions >= start) & (positions < stop), positions - start, -1)
        if positions.numel() * self.width <= _COMPARE_LIMIT:
            match, index = (positions[:, :, None] == self.positions[:, None, :]).max(dim=-1)
            match &= positions >= 0
            return torch.where(match, index, -1)
        ordered, order = self.positions.sort(dim=-1, stable=True)
        index = torch.searchsorted(ordered, positions.contiguous()).clamp_(max=self.width - 1)
        match = (ordered.gather(-1, index) == positions) & (positions >= 0)
        return torch.where(match, order.gather(-1, index), -1)


def plan_on(plan: Plan, device: torch.device) -> Plan:
    """The plan with its tensors on `device`; the plan itself if they are there already."""
    if plan.tokens.device == device:
        return plan
    return replace(plan, **(_on(plan, device) | {"visible": replace(plan.visible, **_on(plan.visible, device))}))


def _on(part: Plan | Visible, device: torch.device) -> dict[str, Any]:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
