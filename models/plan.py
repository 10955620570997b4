"""One forward: `Plan`, its input, and `Hidden`, its result.

The input: tokens, their positions and slots, what they see, and which predictions are wanted. The result: hidden
states, and the head that makes logits of the wanted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .errors import ModelError
from .host_transfer import download

Kind = Literal["bidirectional", "causal", "segments", "tree", "mask"]

_NOTHING = nullcontext()
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
class Ranking:
    """The importance of queries, for a `SkipCache`; with guidance, of the queries in rows with the condition."""

    values: Tensor  # [B, Q] float32, or of every position of a canvas [B, L + 1]
    least: np.ndarray  # [B] the least number of queries that go on


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
    ranking: Ranking | None = None  # by importance only some queries go on to later layers, with a SkipCache; None: all
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
        """The values of one of the plan's tensors; unless they are `known`, the host waits for a device's."""
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

    def after(self, count: int) -> Plan:
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


def _unchanged(states: Tensor) -> Tensor:
    return states


def _no_head(states: Tensor) -> Tensor:
    raise AssertionError("this result has only the states that a drafter reads, and no logits")


@dataclass(frozen=True, slots=True)
class TargetStates:
    """The states of a target that a drafter reads at every position."""

    layers: tuple[int, ...] = ()  # outputs of these layers, side by side in this order; -1 is the embedding
    normed: bool = False  # whether the state after the final norm follows them

    def of(self, hidden: Hidden) -> Tensor:
        """[B, Q, S] of a forward whose plan has these layers in `hidden`; without the copies that guidance adds."""
        device = hidden.states.device
        parts = [hidden.taps[layer].to(device) for layer in self.layers] + ([hidden.normed()] if self.normed else [])
        return torch.cat(parts, -1)[: hidden.plan.batch]

    def __or__(self, other: TargetStates | None) -> TargetStates:
        """The union of both, without duplicates."""
        if other is None:
            return self
        layers = (*self.layers, *(layer for layer in other.layers if layer not in self.layers))
        return TargetStates(layers, self.normed or other.normed)

    def below(self, layers: int) -> bool:
        """Whether these states are known before the last of `layers` layers runs."""
        return not self.normed and all(layer < layers - 1 for layer in self.layers)

    def part(self, values: Tensor, wanted: TargetStates) -> Tensor:
        """[B, Q, S'] the states `wanted`, a subset of these, out of the `values` [B, Q, S] that `of` returned."""
        if wanted == self:
            return values
        parts = values.chunk(len(self.layers) + self.normed, -1)
        chosen = [parts[self.layers.index(layer)] for layer in wanted.layers] + [parts[-1]] * wanted.normed
        return torch.cat(chosen, -1)

    def hidden(self, plan: Plan, values: Tensor) -> Hidden:
        """The `Hidden` of `plan` from which `of` returns `values` [B, Q, S]; it has no logits."""
        parts = values.chunk(len(self.layers) + self.normed, -1)
        return Hidden(plan, parts[-1], _no_head, dict(zip(self.layers, parts, strict=False)))


@dataclass(frozen=True, slots=True, eq=False)
class IdSubset:
    """The ids that a head computes logits of."""

    ids: Tensor  # [N] int64
    size: int  # number of ids in the vocabulary

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [..., N] over the whole vocabulary [..., V], -inf for all other ids."""
        whole = logits.new_full((*logits.shape[:-1], self.size), -torch.inf)
        return whole.index_copy_(-1, self.ids, logits)


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """States after the last layer that ran, before the final norm; the head runs whenever `logits` is called."""

    plan: Plan
    states: Tensor  # [B, Q, E]
    head: Callable[[Tensor], Tensor]  # [M, E] -> [M, V], final norm included
    taps: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> [B, Q, E] output of that layer
    narrowed: bool = False  # the last layer ran on the plan's `want` alone: states is [B, K, E], aligned to it
    norm: Callable[[Tensor], Tensor] = _unchanged  # [..., E]: the final norm, where `head` begins with one
    subset: IdSubset | None = None  # the ids of the head's columns; None: all, in order
    queries: tuple[Tensor, ...] = ()  # per layer that ran [B, n, H, D]: `Plan.queries` queries, as they enter attention
    # Layer -> [B, M, S] float32, attention of the queries `Plan.attending` to the slots read (without a cache slot
    # i is query i), averaged over the heads; all 0 where a query is padding. Its layers are `Plan.attention`.
    attention: Mapping[int, Tensor] = field(default_factory=dict)
    made: tuple[Tensor, ...] = ()  # what `Plan.tail` computed, where the forward was captured with it

    def normed(self) -> Tensor:
        """[B, Q, E] the states after the final norm, the input of the head's matmul."""
        return self.norm(self.states)

    def logits(self, positions: Tensor | None = None, *, subset: bool = False, in_order: bool = False) -> Tensor:
        """Logits of the plan's `want`, or of the queries at absolute `positions` [B, K] -> float32 [B, K, V].

        With `subset` they are over the ids of that alone, where there is one. An entry of -1, or a position that has
        no row, gives the logits of some other query: check `has` first. `in_order` says that the plan wants all of its
        queries in order, so that no state has to be moved.
        """
        # States of an inference-mode forward cannot enter an autograd graph.
        with (
            torch.inference_mode() if self.states.is_inference() and not torch.is_inference_mode_enabled() else _NOTHING
        ):
            rows = self.plan.want if positions is None else self._rows(positions)
            states = self.states.flatten(0, 1)
            aligned = self.narrowed or (in_order and self.states.shape[1] == rows.shape[1])
            if not aligned or positions is not None:
                states = states.index_select(0, self._flat(rows))
            logits = self.head(states).float()
            if self.subset is not None and not subset:
                logits = self.subset.spread(logits)
            return logits.view(*rows.shape, logits.shape[-1])

    def some(self, index: Tensor, positions: Tensor | None = None) -> Tensor:
        """`logits` at these indices into [B * K] only: [N] -> float32 [N, V]."""
        with (
            torch.inference_mode() if self.states.is_inference() and not torch.is_inference_mode_enabled() else _NOTHING
        ):
            if not self.narrowed or positions is not None:
                rows = self.plan.want if positions is None else self._rows(positions)
                index = self._flat(rows)[index]
            logits = self.head(self.states.flatten(0, 1).index_select(0, index)).float()
            return logits if self.subset is None else self.subset.spread(logits)

    def has(self, positions: Tensor) -> Tensor:
        """Whether each of `positions` [B, K] has a row -> bool [B, K]."""
        return self._rows(positions) >= 0

    def _rows(self, positions: Tensor) -> Tensor:
        """The row of `states` for each of `positions` [B, K], -1 where there is none."""
        index = self.plan.at(positions)
        if not self.narrowed:
            return index
        match, row = ((index[:, :, None] == self.plan.want[:, None, :]) & (index[:, :, None] >= 0)).max(dim=-1)
        return torch.where(match, row, -1)

    def _flat(self, rows: Tensor) -> Tensor:
        """Rows [B, K] of each batch row, as indices into [B * M]; -1 is row 0."""
        batch, width, _ = self.states.shape
        rows = rows.to(self.states.device).clamp(min=0)
        if batch > 1:
            rows = rows + torch.arange(0, batch * width, width, device=rows.device)[:, None]
        return rows.flatten()
