"""From the positions that a cache policy asks to the law of the active block: plans, groups of rows, guidance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pardec.models.hidden import Hidden
from pardec.models.kv_cache import KVCache
from pardec.models.language_model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers.canvas import GIVEN, Canvas
from pardec.samplers.contracts import Ask, Filling, Request, Sampler
from pardec.samplers.kernels.law import Law

# A forward of its own costs a group of rows about as much as this many more queries would.
_GROUP_COST = 24
# Picking out what is wanted pays from so many numbers fewer on: states of the last layer, and logits.
_NARROW_GAIN = 2000
_COMPACT_GAIN = 4000


@dataclass(frozen=True, slots=True)
class Queries:
    """What the live rows queried in one step: [n, Q] positions, -1 pads, or the span [start, stop) of each row."""

    rows: np.ndarray  # [n] rows of the request
    start: np.ndarray  # [n]
    stop: np.ndarray  # [n]
    positions: np.ndarray | None = None

    def of(self, at: int) -> range | tuple[int, ...]:
        """The positions of the row at index `at`, a range where they are one."""
        if self.positions is None:
            return range(int(self.start[at]), int(self.stop[at]))
        found = self.positions[at, : self.stop[at] - self.start[at]].tolist()
        whole = bool(found) and found[-1] - found[0] == len(found) - 1
        return range(found[0], found[-1] + 1) if whole else tuple(found)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that go through one forward together."""

    rows: np.ndarray | None  # [n] indices of live rows; None: all
    plan: Plan  # as laid; only its tokens change from forward to forward
    source: Tensor | None  # [n, Q] canvas column of each query, padding at the bin; None: the plan's span
    want: Tensor  # [n, W] query of each block position's prediction, -1 outside of the block; then those of the shadow


class Asking:
    """Lays plans, keeps them while the same positions are asked, and runs the model on them.

    It is also the outlook (see contracts) on the forward just made.
    """

    def __init__(self, model: LanguageModel, canvas: Canvas, sampler: Sampler, request: Request) -> None:
        self.model, self.canvas, self.cfg = model, canvas, request.cfg
        self.copies = 1 if self.cfg is None else 2
        self.given = None if self.cfg is None else canvas.commit_step == GIVEN
        self.every = bool(sampler.revising)  # committed positions of the block are predicted too
        self.whole = any(isinstance(stage, Filling) for stage in sampler.finish)  # any query may be asked for
        shadow = any(getattr(stage, "shadow", False) for stage in sampler.revising)
        self.shadow = canvas.block_length if shadow else 0
        self.allowed, self.limits = request.allowed, None
        if self.allowed is not None:
            rows = pad_sequence(list(self.allowed.at), batch_first=True)
            self.limits = torch.nn.functional.pad(rows, (0, canvas.length + 1 - rows.shape[1])).to(canvas.tokens.device)
        self.cache: KVCache | None = None
        if sampler.cache.stores or shadow:
            self.cache = model.new_cache(self.copies * len(canvas), int(canvas.total.max()) + self.shadow)
        self._begun = False
        self._key = b""
        self._groups: list[_Group] = []
        self._order: Tensor | None = None
        self._made: list[Hidden] = []  # of the forward just made, one a group; kept if `whole`

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows, in the cache too."""
        if self.given is not None:
            self.given = self.given[torch.from_numpy(rows).to(self.given.device)]
        if self.limits is not None:
            self.limits = self.limits[torch.from_numpy(rows).to(self.limits.device)]
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
            first = canvas.lo if self.every else canvas.first_open
            start = np.minimum(ask.start, np.maximum(first - canvas.shift, 0))
            return Queries(canvas.rows, start, np.maximum(ask.stop, canvas.hi - canvas.shift))
        mask = ask.mask[:, : canvas.length].cpu().numpy().copy()
        row, column = np.nonzero(self.wanted(ask))
        mask[row, np.maximum(canvas.lo[row] + column - canvas.shift, 0)] = True
        count = mask.sum(1)
        positions = np.argsort(~mask, axis=1, kind="stable")[:, : count.max()]
        positions = np.where(np.arange(count.max()) < count[:, None], positions, -1)
        return Queries(canvas.rows, np.zeros_like(count), count, positions)

    def wanted(self, ask: Ask) -> np.ndarray:
        """[B, W] bool: the positions of the active block that are to be predicted."""
        canvas = self.canvas
        if self.every:
            within: np.ndarray = canvas.window_host < canvas.length
            return within
        return canvas.eligible_host if ask.only is None else canvas.eligible_host & ask.only.cpu().numpy()

    def law(self, queries: Queries, wanted: np.ndarray, soft: Tensor | None = None) -> tuple[Law, Law | None]:
        """One forward for every live row: the model's distribution at the `wanted` positions of the active block.

        What stands for the block's other positions means nothing. The second law is the shadow's.

        Args:
            soft: [B, W, E] added to the inputs of the block.
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
        self._made.clear()
        if len(self._groups) == 1:
            logits, place, twin = self._forward(self._groups[0], wanted, soft, forward)
            return Law(logits, place), None if twin is None else Law(twin)
        rows, places, twins, count = [], [], [], 0
        for group in self._groups:
            logits, place, twin = self._forward(group, wanted, soft, forward)
            if place is None:
                place = torch.arange(logits.shape[0] * logits.shape[1], device=logits.device).view(logits.shape[:2])
            rows.append(logits.reshape(-1, logits.shape[-1]))
            places.append(place + count)
            count += len(rows[-1])
            if twin is not None:
                twins.append(twin)
        law = Law(torch.cat(rows), torch.cat(places)[self._order])
        return law, Law(torch.cat(twins)[self._order]) if self.shadow else None

    # --- the outlook: the forward just made, at any of its positions ---

    def has(self, positions: Tensor) -> Tensor:
        """Whether the forward predicts each of `positions` [B, K] -> bool [B, K]."""
        found = [
            hidden.has(self._doubled(self.model.rows(self._of(positions, group))))[: len(group.want)]
            for group, hidden in zip(self._groups, self._made, strict=True)
        ]
        return torch.cat(found)[self._order] if self._order is not None else found[0]

    def at(self, positions: Tensor) -> Law:
        """The law at `positions` [B, K]."""
        found = []
        for group, hidden in zip(self._groups, self._made, strict=True):
            chosen = self._of(positions, group)
            logits = self._guided(hidden.logits(self._doubled(self.model.rows(chosen))))
            found.append(self._permitted(logits, group, chosen))
        return Law(torch.cat(found)[self._order] if self._order is not None else found[0])

    # --- one forward ---

    def _forward(
        self,
        group: _Group,
        wanted: np.ndarray,
        soft: Tensor | None,
        forward: Callable[[Plan, KVCache | None], Hidden],
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`rows` and `place` of the law of one group, and the shadow's logits."""
        tokens, want, place, narrow = self._at(self.canvas.tokens, group), group.want, None, not self.whole
        positions = self._of(self.canvas.window, group)
        if want.device.type == "cpu" and not self.shadow:  # elsewhere the shapes had better stay what they are
            want, place, positions = self._wanted_only(group, wanted, positions)
            narrow = narrow and (group.plan.width - want.shape[1]) * len(want) * self.model.width >= _NARROW_GAIN
        if self.shadow:
            tokens = torch.cat([tokens, torch.full_like(positions, self.canvas.mask_id)], 1)
        if self.given is not None:
            hidden_prompt = tokens.clone()
            known = self._at(self.given, group)
            hidden_prompt[:, : known.shape[1]].masked_fill_(known, self.canvas.mask_id)
            tokens = torch.cat([tokens, hidden_prompt])
        plan = replace(group.plan, tokens=tokens, want=self._doubled(want), narrow=narrow)
        if soft is not None:
            plan = replace(plan, soft=self._doubled(self._placed(soft, group)))
        hidden = forward(plan, self.cache)
        if self.whole:
            self._made.append(hidden)
        logits, twin = self._guided(hidden.logits()), None
        if self.shadow:
            twin, logits = logits[:, self.shadow :], logits[:, : self.shadow]
            twin = self._permitted(twin, group, positions)
        logits = self._permitted(logits, group, positions)
        return (logits, None, twin) if place is None else (logits.flatten(0, 1), place, twin)

    def _doubled(self, tensor: Tensor) -> Tensor:
        """The rows once more for the unconditional half of guidance."""
        return tensor if self.cfg is None else torch.cat([tensor, tensor])

    def _guided(self, logits: Tensor) -> Tensor:
        if self.cfg is None:
            return logits
        conditional, unconditional = logits.chunk(2)
        return unconditional + self.cfg * (conditional - unconditional)

    def _permitted(self, logits: Tensor, group: _Group, positions: Tensor) -> Tensor:
        """`logits` [n, M, V] at `positions` [n, M] without the mask id and what is not allowed there."""
        logits.select(-1, self.canvas.mask_id).fill_(-torch.inf)
        if self.allowed is None or self.limits is None:
            return logits
        which = self._of(self.limits, group).gather(1, positions)
        return logits.masked_fill_(~self.allowed.sets[which], -torch.inf)

    def _wanted_only(
        self, group: _Group, wanted: np.ndarray, positions: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The queries wanted, [n, M], where among them each block position's is, [n, W], and what those predict."""
        wanted = wanted if group.rows is None else wanted[group.rows]
        most = max(int(wanted.sum(1).max()), 1)
        if (wanted.shape[1] - most) * len(wanted) * self.model.vocab_size < _COMPACT_GAIN:
            return group.want, None, positions
        order = np.argsort(~wanted, axis=1, kind="stable")[:, :most]
        place = np.maximum(wanted.cumsum(1) - 1, 0) + np.arange(0, len(wanted) * most, most)[:, None]
        chosen = torch.from_numpy(order)
        if self.limits is not None:
            positions = positions.gather(1, chosen)
        return group.want.gather(1, chosen), torch.from_numpy(place), positions

    def _placed(self, soft: Tensor, group: _Group) -> Tensor:
        """`soft` [B, W, E] of the block, at the queries of a group [n, Q, E]; zero elsewhere."""
        soft = self._of(soft, group)
        lo = torch.from_numpy(self.canvas.lo if group.rows is None else self.canvas.lo[group.rows]).to(soft.device)
        at = group.plan.positions[: len(soft)] - lo[:, None]
        outside = (at < 0) | (at >= soft.shape[1])
        found = soft.gather(1, at.masked_fill(outside, 0)[..., None].expand(-1, -1, soft.shape[-1]))
        return found.masked_fill(outside[..., None], 0)

    @staticmethod
    def _of(held: Tensor, group: _Group) -> Tensor:
        """The group's rows of `held` [B, ...]."""
        return held if group.rows is None else held[torch.from_numpy(group.rows).to(held.device)]

    def _at(self, held: Tensor, group: _Group) -> Tensor:
        """What the canvas holds at the queries of a group, [n, Q]."""
        held = self._of(held, group)
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
        slots, asked = positions, positions
        if self.shadow:
            asked, slots, want = self._shadowed(positions, np.where(block < hi[:, None], wanted, -1), want)

        def put(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.concatenate([array] * self.copies)).to(device)

        whole = len(rows) == len(canvas)
        cache_rows = None
        if self.cache is not None and not whole:
            cache_rows = torch.from_numpy(self._cache_rows(rows)).to(device)
        plan = Plan(
            tokens=put(asked),
            positions=put(asked),
            slots=put(slots),
            visible=self.model.visible(),
            lengths=put(end),
            want=put(want),
            rows=cache_rows,
            uniform=int(end[0]) if (end == end[0]).all() else None,
            span=None if self.shadow else span,
        )
        if self.shadow:
            size = canvas.length + self.shadow
            visible = Visible.mask(put(self._leave_one_out(positions, block, hi, end)))
            plan = replace(plan, visible=visible, lengths=torch.full_like(plan.lengths, size), uniform=size)
        source = None
        if plan.span is None:
            source = torch.from_numpy(np.where(positions < 0, canvas.length, positions)).to(device)
        return _Group(None if whole else rows, plan, source, plan.want[: len(rows)])

    # --- the shadow: each block position once more, as a mask that sees everything but the position itself ---

    def _shadowed(
        self, positions: np.ndarray, wanted: np.ndarray, want: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, slots and wants with the shadow's queries behind the canvas's own."""
        width = positions.shape[1]
        slots = np.where(wanted < 0, -1, self.canvas.length + np.arange(self.shadow))
        twins = np.broadcast_to(width + np.arange(self.shadow), wanted.shape)
        return (
            np.concatenate([positions, wanted], 1),
            np.concatenate([positions, slots], 1),
            np.concatenate([want, twins], 1),
        )

    def _leave_one_out(self, positions: np.ndarray, block: np.ndarray, hi: np.ndarray, end: np.ndarray) -> np.ndarray:
        """What each query sees, [n, Q + W, L + W] bool: the canvas never sees the shadow."""
        length, width = self.canvas.length, positions.shape[1]
        slots = np.arange(length)
        seen = np.zeros((len(positions), width + self.shadow, length + self.shadow), dtype=bool)
        seen[..., :length] = slots < end[:, None, None]
        if self.canvas.block_causal:
            segment = np.maximum(positions, 0) // self.canvas.block_length
            seen[:, :width, :length] &= slots // self.canvas.block_length <= segment[..., None]
        seen[:, width:, :length] &= slots != block[..., None]
        seen[:, width:, length:] = (block < hi[:, None])[:, None, :]
        return seen


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
