"""From the positions that a cache policy asks to the law of the active block: plans, groups of rows, guidance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pardec.models.hidden import Hidden
from pardec.models.kv_cache import KVCache
from pardec.models.language_model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers.canvas import GIVEN, Canvas
from pardec.samplers.contracts import Ask
from pardec.samplers.kernels.law import Law

# A forward of its own costs a group of rows about as much as this many more queries would.
_GROUP_COST = 24
# So many queries fewer in the last layer, or rows fewer in the head, are worth picking them out.
_NARROW_GAIN = 40
_COMPACT_GAIN = 4


@dataclass(frozen=True, slots=True)
class Queries:
    """What the live rows queried in one step: [n, Q] positions, -1 pads, or the span [start, stop) of each row."""

    rows: np.ndarray  # [n] rows of the request
    start: np.ndarray  # [n]
    stop: np.ndarray  # [n]
    positions: np.ndarray | None = None

    def of(self, at: int) -> range | tuple[int, ...]:
        """The positions of the row at index `at`."""
        if self.positions is None:
            return range(int(self.start[at]), int(self.stop[at]))
        return tuple(self.positions[at, : self.stop[at] - self.start[at]].tolist())


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that go through one forward together."""

    rows: np.ndarray | None  # [n] indices of live rows; None: all
    plan: Plan  # as laid; only its tokens change from forward to forward
    source: Tensor | None  # [n, Q] canvas column of each query, padding at the bin; None: the plan's span
    want: Tensor  # [n, W] query of each block position's prediction, -1 outside of the block


class Asking:
    """Lays plans, keeps them while the same positions are asked, and runs the model on them."""

    def __init__(self, model: LanguageModel, canvas: Canvas, *, stores: bool, cfg: float | None) -> None:
        self.model, self.canvas, self.cfg = model, canvas, cfg
        self.copies = 1 if cfg is None else 2
        self.given = None if cfg is None else canvas.commit_step == GIVEN
        self.cache: KVCache | None = None
        if stores:
            self.cache = model.new_cache(self.copies * len(canvas), int(canvas.total.max()))
        self._begun = False
        self._key = b""
        self._groups: list[_Group] = []
        self._order: Tensor | None = None

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows, in the cache too."""
        if self.given is not None:
            self.given = self.given[torch.from_numpy(rows).to(self.given.device)]
        if self.cache is not None and len(rows):
            self.cache.keep(torch.from_numpy(self._cache_rows(rows)))
        self._key = b""

    def _cache_rows(self, rows: np.ndarray) -> np.ndarray:
        """Where the cache has these live rows: with guidance once more, in its second half."""
        assert self.cache is not None
        half = self.cache.batch // self.copies
        return np.concatenate([rows + half * copy for copy in range(self.copies)])

    def queries(self, ask: Ask) -> Queries:
        """What to query so that everything asked is, and everything wanted is predicted.

        The first forward of a request is full. In a shifted family the prediction of p stands in row p - 1, so that the
        position before the block is asked too, as long as the block's first one is open.
        """
        canvas = self.canvas
        if not self._begun:
            return Queries(canvas.rows, np.zeros_like(canvas.end), canvas.end)
        if ask.mask is None:
            start = np.minimum(ask.start, np.maximum(canvas.first_open - canvas.shift, 0))
            return Queries(canvas.rows, start, np.maximum(ask.stop, canvas.hi - canvas.shift))
        mask = ask.mask[:, : canvas.length].cpu().numpy().copy()
        row, column = np.nonzero(canvas.eligible_host)
        mask[row, np.maximum(canvas.lo[row] + column - canvas.shift, 0)] = True
        count = mask.sum(1)
        positions = np.argsort(~mask, axis=1, kind="stable")[:, : count.max()]
        positions = np.where(np.arange(count.max()) < count[:, None], positions, -1)
        return Queries(canvas.rows, np.zeros_like(count), count, positions)

    def law(self, queries: Queries) -> Law:
        """One forward for every live row: the model's distribution at the open positions of the active block, float32.

        What stands for the block's other positions means nothing.
        """
        canvas = self.canvas
        key = b"".join(x.tobytes() for x in (queries.start, queries.stop, canvas.lo))
        if queries.positions is not None or key != self._key:
            self._lay(queries)
            self._key = key
            forward = self.model.forward
        else:
            forward = self.model.run  # a plan that was checked, with other tokens
        self._begun = True
        if len(self._groups) == 1:
            return Law(*self._forward(self._groups[0], forward))
        rows, places, count = [], [], 0
        for group in self._groups:
            logits, place = self._forward(group, forward)
            if place is None:
                place = torch.arange(logits.shape[0] * logits.shape[1], device=logits.device).view(logits.shape[:2])
            rows.append(logits.reshape(-1, logits.shape[-1]))
            places.append(place + count)
            count += len(rows[-1])
        return Law(torch.cat(rows), torch.cat(places)[self._order])

    # --- one forward ---

    def _forward(
        self, group: _Group, forward: Callable[[Plan, KVCache | None], Hidden]
    ) -> tuple[Tensor, Tensor | None]:
        """`rows` and `place` of the law of one group."""
        tokens, want, place, narrow = self._at(self.canvas.tokens, group), group.want, None, True
        if want.device.type == "cpu":  # elsewhere the shapes had better stay what they are
            want, place = self._open_only(group)
            narrow = (group.plan.width - want.shape[1]) * len(want) >= _NARROW_GAIN
        if self.given is not None:
            tokens = torch.cat([tokens, tokens.masked_fill(self._at(self.given, group), self.canvas.mask_id)])
            want = torch.cat([want, want])
        logits = forward(replace(group.plan, tokens=tokens, want=want, narrow=narrow), self.cache).logits()
        if self.cfg is not None:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + self.cfg * (conditional - unconditional)
        return (logits, None) if place is None else (logits.flatten(0, 1), place)

    def _open_only(self, group: _Group) -> tuple[Tensor, Tensor | None]:
        """The queries wanted for open positions, [n, M], and where among them each block position's is, [n, W]."""
        eligible = self.canvas.eligible_host
        eligible = eligible if group.rows is None else eligible[group.rows]
        most = int(eligible.sum(1).max())
        if (eligible.shape[1] - most) * len(eligible) < _COMPACT_GAIN:
            return group.want, None
        order = np.argsort(~eligible, axis=1, kind="stable")[:, :most]
        place = np.maximum(eligible.cumsum(1) - 1, 0) + np.arange(0, len(eligible) * most, most)[:, None]
        return group.want.gather(1, torch.from_numpy(order)), torch.from_numpy(place)

    def _at(self, held: Tensor, group: _Group) -> Tensor:
        """What the canvas holds at the queries of a group, [n, Q]."""
        if group.rows is not None:
            held = held[torch.from_numpy(group.rows).to(held.device)]
        if group.source is not None:
            return held.gather(1, group.source)
        assert group.plan.span is not None
        return held[:, slice(*group.plan.span)]

    # --- laying plans ---

    def _lay(self, queries: Queries) -> None:
        split = _split(queries.stop - queries.start)
        self._groups = [self._group(rows, queries) for rows in split]
        self._order = None
        if len(split) > 1:
            order = np.argsort(np.concatenate(split))
            self._order = torch.from_numpy(order).to(self.canvas.tokens.device)

    def _group(self, rows: np.ndarray, queries: Queries) -> _Group:
        canvas, device = self.canvas, self.canvas.tokens.device
        start, stop, end = queries.start[rows], queries.stop[rows], canvas.end[rows]
        lo, hi = canvas.lo[rows], canvas.hi[rows]
        width = int((stop - start).max())
        if queries.positions is None:
            positions = start[:, None] + np.arange(width)
            positions[positions >= stop[:, None]] = -1
        else:
            positions = queries.positions[rows, :width]
        block = lo[:, None] + np.arange(canvas.block_length)
        wanted = np.maximum(block - canvas.shift, 0)
        want = wanted - start[:, None] if queries.positions is None else _index(positions, wanted)
        want[(block >= hi[:, None]) | (want < 0)] = -1
        even = bool((stop - start == width).all())
        span = None
        if even and queries.positions is None and (start == start[0]).all():
            span = (int(start[0]), int(stop[0]))

        def put(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.concatenate([array] * self.copies)).to(device)

        whole = len(rows) == len(canvas)
        cache_rows = None
        if self.cache is not None and not whole:
            cache_rows = torch.from_numpy(self._cache_rows(rows)).to(device)
        plan = Plan(
            tokens=put(positions),
            positions=put(positions),
            slots=put(positions),
            visible=self.model.visible(),
            lengths=put(end),
            want=put(want),
            rows=cache_rows,
            uniform=int(end[0]) if (end == end[0]).all() else None,
            span=span,
        )
        source = None
        if span is None:
            source = torch.from_numpy(np.where(positions < 0, canvas.length, positions)).to(device)
        return _Group(None if whole else rows, plan, source, plan.want[: len(rows)])


def _split(width: np.ndarray) -> list[np.ndarray]:
    """Rows in one group, or in two where the padding saved is worth a forward; [n] indices each."""
    rows = np.arange(len(width))
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
    """Where each of `wanted` [n, W] stands in `positions` [n, Q], -1 where it does not."""
    same = positions[:, None, :] == wanted[:, :, None]
    return np.where(same.any(-1), same.argmax(-1), -1)
