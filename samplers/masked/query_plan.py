"""Plans the positions that a step computes: the cache's, and those whose outputs predict the wanted ones.

- `VisiblePositions`: if a query stage leaves positions out, the visible ones take the first slots of a row in order,
  so that a forward reads no others. Keys are rotated by their positions, and attention does not depend on the order
  of slots.
- `QueryPlanner`, `Queries`: the positions that each live row computes.
- `Layout`, `Group`: the plans, one for each group of rows that one forward computes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Ranking, Visible

from ..batching import RowState
from ..host_transfer import download, upload
from ..prefix_reuse import PrefixReuse
from .canvas import Canvas
from .contracts import AttentionSpec, QuerySpec


class VisiblePositions(RowState):
    """The visible positions of each live row and their slots; column L is a scratch slot.

    Attributes:
        slots: [B, L + 1] the slot of each visible position, -1 for others.
        moved: [B, L + 1] bool: visible positions that had another slot, or none, before the last `update`.
    """

    per_row = ("slots", "moved")
    fills: Mapping[str, float] = {"slots": -1}

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self.slots: np.ndarray = np.full(canvas.open_host.shape, -1)
        self.moved: np.ndarray = np.zeros(canvas.open_host.shape, dtype=bool)

    @property
    def which(self) -> np.ndarray:
        """[B, L] bool: the visible positions."""
        visible: np.ndarray = self.slots[:, :-1] >= 0
        return visible

    @property
    def counts(self) -> np.ndarray:
        """[B]: the number of visible positions."""
        counts: np.ndarray = (self.slots >= 0).sum(1)
        return counts

    def update(self, visible: np.ndarray) -> None:
        """Makes these [B, L] visible, and all positions that are committed or before the end of the active block."""
        canvas, order = self.canvas, np.arange(self.canvas.length)
        visible = visible | ~canvas.open_host[:, :-1] | (order < canvas.block_end[:, None])
        visible = np.pad(visible & (order < canvas.end[:, None]), ((0, 0), (0, 1)))
        slots = np.where(visible, visible.cumsum(1) - 1, -1)
        self.moved, self.slots = visible & (slots != self.slots), slots

    def queried(self, mask: np.ndarray, new: np.ndarray) -> np.ndarray:
        """[B, L] bool: visible positions that are in `mask` [B, L], have moved, or belong to `new` [B] rows."""
        queried: np.ndarray = self.which & (mask | self.moved[:, :-1] | new[:, None])
        return queried


# A separate forward for a group of rows costs about as much as this many additional positions.
_GROUP_COST = 24
# Computing only the wanted logits pays if it saves at least this many logits.
_COMPACT_GAIN = 4000


@dataclass(frozen=True, slots=True)
class Queries:
    """The positions that live rows compute in one step: [n, Q], -1 for padding, or the span [start, stop) per row."""

    rows: np.ndarray  # [n] rows of the request
    start: np.ndarray  # [n]
    stop: np.ndarray  # [n]
    shift: np.ndarray  # [n] the output at position p - shift predicts position p
    positions: np.ndarray | None = None
    slots: np.ndarray | None = None  # [n, L + 1] the slot of each position, -1 for none; None: slot = position
    counts: np.ndarray | None = None  # [n] valid slots per row; None: up to its end
    similar: np.ndarray | None = None  # [n] bool: rows whose layers compute part of the positions
    ranking: Ranking | None = None  # importance of all positions of the canvas; no part of the key

    @property
    def key(self) -> bytes:
        """A key that is equal for queries with the same layout."""
        span = self.start.tobytes() + self.stop.tobytes() + self.shift.tobytes()
        if self.positions is None:
            return span
        parts = (self.positions, self.slots, self.counts, self.similar)
        return b"".join([span, *(part.tobytes() for part in parts if part is not None)])

    def of(self, at: int) -> range | tuple[int, ...]:
        """The positions of the row at index `at`; a range if they have no gaps."""
        if self.positions is None:
            return range(int(self.start[at]), int(self.stop[at]))
        row = self.positions[at, : self.stop[at] - self.start[at]].tolist()
        whole = bool(row) and row[-1] - row[0] == len(row) - 1
        return range(row[0], row[-1] + 1) if whole else tuple(row)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that one forward computes together."""

    rows: np.ndarray | None  # [n] indices of live rows; None: all
    plan: Plan  # only its tokens change between forwards
    source: Tensor | None  # [n, Q] canvas column of each query, L for padding; None: the plan's span
    want: Tensor  # [n, W] index of the query that predicts each block position, -1 outside; then leave-one-out ones
    positions: np.ndarray  # [n, Q] the positions that are computed, -1 for padding, on the host

    def of(self, values: Tensor) -> Tensor:
        """The rows of `values` [B, ...] in this group."""
        return values if self.rows is None else values[upload(self.rows, values.device)]

    def ranked(self, ranking: Ranking | None) -> Ranking | None:
        """The `ranking` of the positions that the group computes; None if its layers compute all of them."""
        if ranking is None or self.plan.similar is None:
            return None
        return Ranking(
            self.at_queries(ranking.values), ranking.least if self.rows is None else ranking.least[self.rows]
        )

    def at_queries(self, values: Tensor) -> Tensor:
        """[n, Q]: `values` [B, L + 1] at the positions that the group computes."""
        if self.source is None:
            assert self.plan.span is not None, "else there is a source"
            values = values[:, slice(*self.plan.span)]
            return values if self.rows is None else values[upload(self.rows, values.device)]
        return self.of(values).gather(1, self.source)


@dataclass(frozen=True, slots=True)
class Arranged:
    """The arrays of one forward on the host, for n rows."""

    positions: np.ndarray  # [n, Q] that are computed, -1 for padding
    outside: np.ndarray  # [n, W] bool: entries of the window that are not in the block
    wanted: np.ndarray  # [n, W] the position whose output predicts each block position
    want: np.ndarray  # [n, W] its index among `positions`, -1 if there is none, and outside of the block
    end: np.ndarray  # [n] valid slots
    span: tuple[int, int] | None  # as in `Plan`, and `uniform` too
    uniform: int | None


@dataclass(frozen=True)
class Layout:
    """Turns queries into plans.

    Attributes:
        copies: 2 with guidance, which runs every row again in the second half of a plan's rows, else 1.
        leave_one_out: number of extra masks after the canvas for leave-one-out predictions; 0 without them.
        attention: the attention that stages read.
    """

    model: LanguageModel
    canvas: Canvas
    cache: KVCache | None
    copies: int
    leave_one_out: int
    attention: AttentionSpec | None = None

    def cache_rows(self, rows: np.ndarray) -> np.ndarray:
        """The cache rows of these live rows; with guidance also those in the cache's second half."""
        assert self.cache is not None
        half = self.cache.batch // self.copies
        return np.concatenate([rows + half * copy for copy in range(self.copies)])

    def plan_groups(self, queries: Queries) -> tuple[list[Group], Tensor | None]:
        """A plan per group of rows of similar size, and each live row's index in the concatenated groups."""
        split = _split(queries.stop - queries.start, queries.similar)
        groups = [self._group(rows, queries) for rows in split]
        if len(split) == 1:
            return groups, None
        order = np.argsort(np.concatenate(split))
        return groups, upload(order, self.canvas.tokens.device)

    def arranged_together(self, queries: Queries) -> Arranged | None:
        """The arrays of one forward of all live rows; None if they are better computed in two."""
        (first, *others) = _split(queries.stop - queries.start, queries.similar)
        return None if others else self._arrange(first, queries)

    def _arrange(self, rows: np.ndarray, queries: Queries) -> Arranged:
        """The positions that a forward of these live rows computes, and those whose outputs are wanted."""
        canvas = self.canvas
        start, stop, end = queries.start[rows], queries.stop[rows], canvas.end[rows]
        if queries.counts is not None:
            end = queries.counts[rows]
        block_start, block_end = canvas.block_start[rows], canvas.block_end[rows]
        width = int((stop - start).max())
        if queries.positions is None:
            positions = start[:, None] + np.arange(width)
            positions[positions >= stop[:, None]] = -1
        else:
            positions = queries.positions[rows, :width]
        block = canvas.window_host[rows]
        outside = (block < block_start[:, None]) | (block >= block_end[:, None])
        wanted = np.maximum(block - queries.shift[rows, None], 0)
        want = wanted - start[:, None] if queries.positions is None else _index(positions, wanted)
        want[outside | (want < 0)] = -1
        even = bool((stop - start == width).all())
        span = None
        if even and queries.positions is None and (start == start[0]).all():
            span = (int(start[0]), int(stop[0]))
        uniform = int(end[0]) if (end == end[0]).all() else None
        return Arranged(positions, outside, wanted, want, end, span, uniform)

    def _group(self, rows: np.ndarray, queries: Queries) -> Group:
        canvas, device = self.canvas, self.canvas.tokens.device
        each = self._arrange(rows, queries)
        positions, want, end, span = each.positions, each.want, each.end, each.span
        block, outside = canvas.window_host[rows], each.outside
        start, stop = queries.start[rows], queries.stop[rows]
        slots, queried, own = positions, positions, block
        if queries.slots is not None:  # -1 is the scratch column, which has no slot
            slots, own = (np.take_along_axis(queries.slots[rows], at, 1) for at in (positions, block))
        if self.leave_one_out:
            wanted = np.where(outside, -1, each.wanted)
            queried, slots, want = self.with_leave_one_out(rows, positions, slots, wanted, want)

        known: list[tuple[Tensor, np.ndarray]] = []

        def on_device(array: np.ndarray) -> Tensor:
            every = np.concatenate([array] * self.copies)
            known.append((upload(every, device), every))
            return known[-1][0]

        whole = len(rows) == len(canvas)
        cache_rows = None
        if self.cache is not None and not whole:
            cache_rows = upload(self.cache_rows(rows), device)
        plan = Plan(
            tokens=on_device(queried),
            positions=on_device(queried),
            slots=on_device(slots),
            visible=self.model.visible(),
            lengths=on_device(end),
            want=on_device(want),
            rows=cache_rows,
            uniform=each.uniform,
            span=None if self.leave_one_out else span,
            similar=None
            if queries.similar is None or not queries.similar[rows].any()
            else on_device(queries.similar[rows]),
        )
        if self.attention is not None:
            attending = None
            if not self.attention.every:
                own = block - start[:, None] if queries.positions is None else _index(positions, block)
                own[outside | (own < 0) | (own >= (stop - start)[:, None])] = -1
                attending = on_device(own)
            plan = replace(plan, attention=self.attention.layers, attending=attending)
        if device.type != "cpu":  # there the tensors themselves are read
            plan = replace(plan, known=tuple(known))
        if self.leave_one_out:
            dense = self.visible_to_copies(rows, positions, own, wanted, end)
            size, visible = dense.shape[-1], Visible.mask(on_device(dense))
            plan = replace(plan, visible=visible, lengths=torch.full_like(plan.lengths, size), uniform=size)
        source = None
        if plan.span is None:
            source = upload(np.where(positions < 0, canvas.length, positions), device)
        return Group(None if whole else rows, plan, source, plan.want[: len(rows)], queried)

    # --- leave-one-out: an extra mask for each block position, which attends to every position but this one ---

    def with_leave_one_out(
        self, rows: np.ndarray, positions: np.ndarray, slots: np.ndarray, wanted: np.ndarray, want: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, slots and wants with the leave-one-out masks after the canvas."""
        width = positions.shape[1]
        own = np.where(wanted < 0, -1, self.canvas.length + np.arange(self.leave_one_out))
        leave_one_out = np.broadcast_to(width + np.arange(self.leave_one_out), wanted.shape)
        return (
            np.concatenate([positions, wanted], 1),
            np.concatenate([slots, own], 1),
            np.concatenate([want, leave_one_out], 1),
        )

    def visible_to_copies(
        self, rows: np.ndarray, positions: np.ndarray, own: np.ndarray, wanted: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """[n, Q + W, L + W] bool: what each query attends to; the canvas never attends to the leave-one-out masks.

        Args:
            own: [n, W] the slot of each position of the block.
            wanted: [n, W] the position whose output predicts each block position; -1 outside of the block.
        """
        inside = self.canvas.window_host[rows] < self.canvas.block_end[rows][:, None]
        length, width = self.canvas.length, positions.shape[1]
        slots = np.arange(length)
        visible = np.zeros((len(positions), width + self.leave_one_out, length + self.leave_one_out), dtype=bool)
        visible[..., :length] = slots < end[:, None, None]
        if self.canvas.block_causal:
            segment = np.maximum(positions, 0) // self.canvas.block_length
            visible[:, :width, :length] &= slots // self.canvas.block_length <= segment[..., None]
        visible[:, width:, :length] &= slots != own[..., None]
        visible[:, width:, length:] = inside[:, None, :]
        return visible


def wanted_columns(group: Group, wanted: np.ndarray, vocab: int) -> tuple[Tensor | None, Tensor | None]:
    """The wanted columns [n, M] of the block, and each block position's flat index among them [n, W].

    Returns None, None if computing the logits of all positions costs little more.
    """
    wanted = wanted if group.rows is None else wanted[group.rows]
    counts = wanted.sum(1)
    most = max(int(counts.max()), 1)
    if (wanted.shape[1] - most) * len(wanted) * vocab < _COMPACT_GAIN:
        return None, None
    if (counts == most).all():
        order = wanted.nonzero()[1].reshape(-1, most)
    else:
        order = np.argsort(~wanted, axis=1, kind="stable")[:, :most]
    index = np.maximum(wanted.cumsum(1) - 1, 0) + np.arange(0, len(wanted) * most, most)[:, None]
    return torch.from_numpy(order), torch.from_numpy(index)


def visible_open(canvas: Canvas, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """The open positions of `rows` ([B] bool) that a forward may attend to.

    Returns:
        [B, L + 1] bool, and the same as columns [B, K], padded with L.
    """
    which = canvas.open_host & rows[:, None] & (np.arange(canvas.length + 1) < canvas.end[:, None])
    most = int(which.sum(1).max())
    columns = np.argsort(~which, axis=1, kind="stable")[:, :most]
    columns = np.where(np.arange(most) < which.sum(1)[:, None], columns, canvas.length)
    device = canvas.tokens.device
    return upload(which, device), upload(columns, device)


def _split(width: np.ndarray, similar: np.ndarray | None = None) -> list[np.ndarray]:
    """Splits rows into one group, or two if the padding saved is worth a forward; [n] indices each.

    Rows that are `similar` [n] bool are in another group than those whose layers compute all positions.
    """
    rows = np.arange(len(width))
    if similar is not None and similar.any() and not similar.all():
        return [rows[~similar], rows[similar]]
    if len(width) == 1 or width.min() == width.max():
        return [rows]
    order = np.argsort(-width, kind="stable")
    sorted_width = width[order]
    counts = rows[1:]
    costs = counts * sorted_width[0] + (len(width) - counts) * sorted_width[1:] + _GROUP_COST
    if costs.min() >= len(width) * sorted_width[0]:
        return [rows]
    cut = int(counts[costs.argmin()])
    return [np.sort(order[:cut]), np.sort(order[cut:])]


def _index(positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The index of each of `wanted` [n, W] in `positions` [n, Q], -1 where it is absent."""
    same = positions[:, None, :] == wanted[:, :, None]
    return np.where(same.any(-1), same.argmax(-1), -1)


@dataclass(frozen=True)
class QueryPlanner:
    """Turns a `QuerySpec` into queries.

    Attributes:
        reuse: prefixes of rows whose K/V are in the cache before their first forward.
        visible: the visible positions, if a query stage leaves some out.
        every: True: committed positions of the block are predicted too, without given ones.
        stored: True: predictions of earlier forwards are stored, so that no position is computed only for them.
    """

    canvas: Canvas
    reuse: PrefixReuse
    visible: VisiblePositions | None
    every: bool
    stored: bool

    def wanted(self, query: QuerySpec) -> np.ndarray:
        """[B, W] bool: the positions of the active block that are to be predicted."""
        canvas = self.canvas
        only = None if query.only is None else download(query.only)
        if not self.every:
            return canvas.eligible_host if only is None else canvas.eligible_host & only
        # A revise stage reads committed positions too, but for those that the request gave.
        generated: np.ndarray = canvas.active_host & ~np.take_along_axis(canvas.given_host, canvas.window_host, 1)
        if only is None:
            return generated
        # A `shifted` forward computes the tokens before the block alone: it predicts the block's first token, and
        # nothing in the block is committed yet.
        committed = ~canvas.eligible_host if query.shifted is None else ~(canvas.eligible_host | query.shifted[:, None])
        wanted: np.ndarray = generated & (only | committed)
        return wanted

    def queries(self, query: QuerySpec) -> Queries:
        """The positions of `query`, and those whose outputs predict the wanted positions.

        The first forward of a row is full, except for a prefix that it reuses. In a shifted family position p is
        predicted by the output of p - 1, so that the position before the block is computed too, as long as the block's
        first position is open. Positions that are not visible are never computed.
        """
        canvas = self.canvas
        new = canvas.nfe == 0
        any_new = new.any()
        shift = np.full(len(canvas), canvas.shift)
        if query.shifted is not None:
            shift = np.where(query.shifted, 1, shift)
        for index in np.flatnonzero(new).tolist() if any_new else ():
            self.reuse.begin(index, canvas.tokens_host[index], int(canvas.block_start[index] - shift[index]))
        first_start = self.reuse.length.copy()
        order = np.arange(canvas.length)
        if self.visible is not None:  # in a family that reuses no prefixes
            mask = (order >= query.start[:, None]) & (order < query.stop[:, None])
            if query.mask is not None:
                mask = download(query.mask[:, : canvas.length])
            return self._of_mask(self.visible.queried(mask, new), query, shift, self.visible)
        if any_new and new.all():
            return Queries(canvas.rows, first_start, canvas.end, shift)
        if query.mask is None:
            first = canvas.block_start if self.every else canvas.first_known
            start = np.minimum(query.start, np.maximum(first - shift, 0))
            if canvas.unread and (start < query.start).any():
                start = np.minimum(query.start, np.maximum(canvas.first_open - shift, 0))
            stop = np.maximum(query.stop, canvas.block_end - shift)
            if any_new:
                start, stop = np.where(new, first_start, start), np.where(new, canvas.end, stop)
            return Queries(canvas.rows, start, stop, shift)
        mask = download(query.mask[:, : canvas.length]).copy()
        if any_new:
            mask = np.where(new[:, None], (order >= first_start[:, None]) & (order < canvas.end[:, None]), mask)
        return self._of_mask(mask, query, shift)

    def _of_mask(
        self, mask: np.ndarray, query: QuerySpec, shift: np.ndarray, visible: VisiblePositions | None = None
    ) -> Queries:
        """The queries of `mask` [B, L] and those that predict the wanted positions of the block."""
        canvas = self.canvas
        if not self.stored:
            row, column = np.nonzero(self.wanted(query))
            mask[row, np.maximum(canvas.window_host[row, column] - shift[row], 0)] = True
        count = mask.sum(1)
        positions = np.argsort(~mask, axis=1, kind="stable")[:, : count.max()]
        positions = np.where(np.arange(count.max()) < count[:, None], positions, -1)
        queries = Queries(canvas.rows, np.zeros_like(count), count, shift, positions)
        if visible is not None:
            queries = replace(queries, slots=visible.slots, counts=visible.counts)
        if query.similar is not None:
            similar = query.similar & (canvas.nfe > 0)
            if visible is not None:  # the layers' stored outputs belong to slots
                similar = similar & ~visible.moved.any(1)
            queries = replace(queries, similar=similar, ranking=query.ranking)
        return queries
