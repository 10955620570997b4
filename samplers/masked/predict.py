"""Turns the positions that a cache queries into the active block's distribution: plans, groups of rows, guidance.

The last state of every position, from which predictions are read where a forward does not query it.

The head is a function of a position's last state, so that a state stands for all logits of the position, at a fraction
of their memory: those of both halves of guidance, before they are mixed.

Brings together what the groups of rows of a forward attend to, as maps by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models import finite
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import PardecError
from pardec.models.hidden import Hidden, IdSubset
from pardec.models.images.conditioned import Shifted, copy_cache_rows
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

from ..ops.allowed import AllowedRows
from ..ops.chunked_distribution import CHUNK_BYTES, ChunkedDistribution, RowDistribution, join, needs_chunks
from ..ops.distribution import DenseDistribution, Distribution, split
from ..ops.penalties import penalize, token_counts, without_ends
from ..prefix_reuse import PrefixReuse
from ..traits import Trait
from .canvas import PROMPT, Canvas
from .constraints import ConstrainedSpans
from .contracts import AttentionMaps, AttentionSpec, Cache, MaskedSampler, QuerySpec, Request, united
from .query_plan import Group, Layout, Queries, QueryPlanner, VisiblePositions, at_queries, noised, wanted_only


class LastStates:
    """The last state of every position of the live rows; column L is a bin."""

    def __init__(self, model: LanguageModel, canvas: Canvas) -> None:
        self.canvas, self.shift, self.vocab = canvas, model.decoding_config.shift, model.vocab_size
        imaging = model.imaging
        # Of an image model the codes alone count, as in the published loop; they stand at every position.
        self.ids = None if imaging is None or imaging.layout.ids is None else imaging.layout.ids.to(model.device)
        self.states: Tensor | None = None  # [copies, B, L + 1, E]
        self.head: Callable[[Tensor], Tensor] | None = None  # [N, E] -> [N, V]
        self.subset: IdSubset | None = None
        self.highest = np.zeros(canvas.tokens.shape, dtype=np.float32)  # [B, L + 1]
        self.stale = np.zeros(canvas.tokens.shape, dtype=bool)  # where `highest` is that of an earlier state
        self.first = np.zeros(len(canvas), dtype=np.int64)  # [B] where the half with the condition begins

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        if self.states is not None:
            self.states = self.states[:, torch.from_numpy(rows).to(self.states.device)]
        self.highest, self.stale, self.first = self.highest[rows], self.stale[rows], self.first[rows]

    def put(self) -> None:
        """Makes room for rows that no forward has seen, and for the columns that the canvas has grown by.

        Their first forward queries all of them.
        """
        more = self.canvas.tokens.shape[1] - self.stale.shape[1]
        if more:
            self.highest, self.stale = (np.pad(each, ((0, 0), (0, more))) for each in (self.highest, self.stale))
            if self.states is not None:
                self.states = torch.nn.functional.pad(self.states, (0, 0, 0, more))

    def want(self, group: Group) -> Tensor:
        """[n, W] the position of each prediction of the block, -1 outside of it."""
        window = self.canvas.window if group.rows is None else self.canvas.window[self._rows(group)]
        at = (window - self.shift).clamp(min=0)
        return torch.where(window < self.canvas.length, at, -1)

    def update_and_merge(self, hidden: Hidden, group: Group) -> Hidden:
        """Stores the states of a forward; the same forward as if it had queried every position."""
        raw = hidden.hidden if isinstance(hidden, Shifted) else hidden
        count, (_, queries, width) = len(group.want), raw.states.shape
        fresh = raw.states.view(-1, count, queries, width)
        copies, length = len(fresh), self.canvas.length
        if self.states is None:
            self.states = fresh.new_zeros(copies, len(self.canvas), length + 1, width)
        self.head, self.subset = raw.head, raw.subset
        rows, positions = self._rows(group), group.plan.positions[:count]
        at = torch.where(positions < 0, length, positions)
        self.states[:, rows[:, None], at] = fresh
        self.stale[rows.cpu().numpy()[:, None], at.cpu().numpy()] = True
        states = self.states[:, rows, :length].flatten(0, 1)
        order = torch.arange(length, device=states.device).expand(count, length)
        shifts = hidden.shifts if isinstance(hidden, Shifted) else [torch.zeros_like(rows)] * copies
        self.first[rows.cpu().numpy()] = -shifts[0].cpu().numpy()
        # Before the first slot of a shorter half nothing stands.
        own = torch.cat([(order + by[:, None]).clamp(min=-1) for by in shifts])
        whole = replace(raw, plan=replace(raw.plan, positions=own, slots=own, span=None), states=states)
        if not isinstance(hidden, Shifted):
            return whole
        plan = replace(hidden.plan, positions=order, slots=order, span=None)
        return replace(hidden, plan=plan, states=states, hidden=whole)

    def max_logits(self) -> np.ndarray:
        """[B, L] the highest logit of each position when it was queried last, of the half with its condition.

        It is infinite where that half has no token: before a condition shorter than the one of the other half.
        """
        assert self.states is not None, "after a forward"
        assert self.head is not None
        self.stale[:, -1] = False
        row, position = self.stale.nonzero()
        for part in split(np.arange(len(row)), CHUNK_BYTES // (4 * self.vocab)):
            logits = self.head(self.states[0, torch.from_numpy(row[part]), torch.from_numpy(position[part])])
            if self.subset is not None:
                logits = self.subset.spread(logits)
            if self.ids is not None:
                logits = logits[:, self.ids]
            elif self.canvas.mask_id < self.vocab:
                logits[:, self.canvas.mask_id] = -torch.inf
            self.highest[row[part], position[part]] = logits.amax(1).float().cpu().numpy()
        self.stale[:] = False
        return np.where(np.arange(self.canvas.length) < self.first[:, None], np.inf, self.highest[:, :-1])

    def _rows(self, group: Group) -> Tensor:
        """[n] the live rows of a group."""
        rows = np.arange(len(self.canvas)) if group.rows is None else group.rows
        return torch.from_numpy(rows).to(self.canvas.tokens.device)


class AttentionReading:
    """The maps of a forward, brought together from its groups of rows."""

    def __init__(
        self, spec: AttentionSpec, canvas: Canvas, count: int, leave_one_out: int, visible: VisiblePositions | None
    ) -> None:
        """`count` are the model's layers; `leave_one_out` queries of a group stand behind those of the canvas.

        With `visible` positions have slots of other numbers.
        """
        self.spec, self.canvas, self.count, self.leave_one_out, self.visible = (
            spec,
            canvas,
            count,
            leave_one_out,
            visible,
        )
        self._parts: list[tuple[Tensor, Mapping[int, Tensor]]] = []

    def begin(self) -> None:
        """Before a forward."""
        self._parts.clear()

    def add(self, hidden: Hidden, group: Group) -> None:
        """The forward of one group; its first rows are the half with the condition."""
        count, length, plan = len(group.want), self.canvas.length, hidden.plan
        if plan.attending is None:
            width = plan.width - self.leave_one_out
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


_NARROW_GAIN = 2000  # computing only the wanted outputs of the last layer pays if it saves at least this many values


class MaskedForward:
    """Lays plans, keeps them while the same positions are queried, and runs the model on them.

    It is also the `Predictions` of the forward just made.
    """

    def __init__(self, model: LanguageModel, canvas: Canvas, sampler: MaskedSampler, request: Request) -> None:
        self.model, self.canvas = model, canvas
        self.cfg = None if request.conditions else request.cfg  # images are guided behind their conditions
        self.copies = 1 if self.cfg is None else 2
        self.given = None if self.cfg is None else canvas.commit_step == PROMPT
        self.every = bool(sampler.revising)  # committed positions of the block are predicted too
        traits = sampler.traits
        self.fills = Trait.FILLS_ROWS in traits or Trait.READS_WHOLE_ROW in traits
        self.cuts = Trait.CUTS_ROWS in traits
        leave_one_out, stores = Trait.LEAVE_ONE_OUT in traits, Trait.STORES_KV in traits
        self.leave_one_out = canvas.block_length if leave_one_out else 0
        self.allowed = AllowedRows(request.allowed, len(canvas), canvas.tokens.device)
        self.constrained_spans = ConstrainedSpans(request.constrained_spans, len(canvas))
        self.limits = self.allowed  # what holds in the present step
        self.request = request
        self.counts: Tensor | None = None  # [B, V] how often each token occurs in a row, for penalties
        self.last_states = LastStates(model, canvas) if Trait.REUSES_PREDICTIONS in traits else None
        self.visible = None if sampler.query is None else VisiblePositions(canvas)
        self.cache: KVCache | None = None
        if stores or leave_one_out or request.conditions:
            capacity = int(canvas.total.max()) + self.leave_one_out
            reuse = sampler.cache.layer_reuse(model.layers)
            self.cache = model.new_cache(self.copies * len(canvas), capacity, reuse=reuse)
        tells = self.cfg is None and type(sampler.cache).final is not Cache.final
        self.reuse = PrefixReuse(model, self.cache if tells else None, len(canvas))
        stored = self.last_states is not None
        self.selection = QueryPlanner(canvas, self.reuse, self.visible, every=self.every, stored=stored)
        attention = united(stage.reads_attention(model.layers) for stage in sampler.stages)
        self.reading = None
        if attention is not None:
            self.reading = AttentionReading(attention, canvas, model.layers, self.leave_one_out, self.visible)
        self.layout = Layout(model, canvas, self.cache, self.copies, self.leave_one_out, attention)
        self._key = b""
        self._groups: list[Group] = []
        self._order: Tensor | None = None
        self._hidden: list[Hidden] = []  # the last forward's outputs, one a group; kept if it is `whole`
        self._raw: list[RowDistribution] = []  # what it predicts for the block, one a group; if the request records it
        self._runs: list[finite.Run] = []  # the last forward, one a group
        self.highest = torch.zeros((), device=canvas.tokens.device)  # summed over all logits so far: see `finite`

    @property
    def sequences(self) -> int:
        """How many sequences a row is run as: 2 under guidance."""
        return self.copies * (1 if self.cache is None else self.cache.copies)

    @property
    def whole(self) -> bool:
        """Whether any query of the present step's forward may be read after it."""
        return self.fills or (self.cuts and bool(self.canvas.block_started.any()))

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows, in the cache as well."""
        for state in (self.last_states, self.visible):
            if state is not None:
                state.keep(rows)
        if self.given is not None:
            self.given = self.given[torch.from_numpy(rows).to(self.given.device)]
        self.allowed.keep(rows)
        self.constrained_spans.keep(rows)
        self.reuse.keep(rows)
        if self.cache is not None and len(rows):
            self.cache.keep(torch.from_numpy(self.layout.cache_rows(rows)))
        self._key = b""

    def put(self, where: np.ndarray, other: MaskedForward) -> None:
        """Makes room for the rows of `other`, which the canvas now has at `where` and no forward has seen.

        Their first forward computes or copies all K/V, so that stale entries of the cache are never seen.
        """
        if self.given is not None:
            self.given = self.canvas.commit_step == PROMPT  # no forward has changed that
        self.allowed.put(where, other.allowed)
        self.constrained_spans.put(where, other.constrained_spans)
        for state in (self.last_states, self.visible):
            if state is not None:
                state.put()
        if self.request.conditions and self.cache is not None and other.cache is not None:
            copy_cache_rows(self.model.decoder, self.cache, torch.from_numpy(where), other.model.decoder, other.cache)
        elif self.cache is not None and other.cache is not None:
            self.cache.grow(other.cache.capacity)
        self.reuse.put(where, other.reuse)
        self._key = b""

    def queries(self, query: QuerySpec) -> Queries:
        """The positions of `query`, and those whose outputs predict the wanted ones."""
        return self.selection.queries(query)

    def wanted(self, query: QuerySpec) -> np.ndarray:
        """[B, W] bool: the positions of the active block that are to be predicted."""
        return self.selection.wanted(query)

    def distribution(
        self, queries: Queries, wanted: np.ndarray, soft: Tensor | None = None
    ) -> tuple[Distribution, Distribution | None]:
        """One forward for every live row: the model's distribution at the `wanted` positions of the active block.

        The values at the block's other positions are meaningless. The second distribution is the shadow's.

        Args:
            soft: [B, W, E] added to the inputs of the block.
        """
        canvas = self.canvas
        self.limits = self.constrained_spans.narrow(self.allowed, canvas)
        if self.request.repetition_penalty is not None:
            # The canvas after a short answer is full of end tokens, which must stay free.
            inside = np.arange(canvas.length + 1) < canvas.total[:, None]
            known = ~canvas.open & torch.from_numpy(inside).to(canvas.open.device)
            self.counts = token_counts(canvas.tokens, known, self.model.vocab_size, self.request.stop_ids)
        key = queries.key + b"".join(bounds.tobytes() for bounds in (canvas.block_start, canvas.block_end, canvas.end))
        if key != self._key:
            self._groups, self._order = self.layout.plan_groups(queries)
            self._key = key
            forward = self.model.run if self.request.conditions else self.model.forward  # conditions are no tokens
        else:
            forward = self.model.run  # the same plan with other tokens, already checked
        self._hidden.clear()
        self._raw.clear()
        self._runs.clear()
        if self.reading is not None:
            self.reading.begin()
        each = [self._forward(group, wanted, soft, forward) for group in self._groups]
        leave_one_outs = [leave_one_out for _, leave_one_out in each if leave_one_out is not None]
        whole = self._joined([distribution for distribution, _ in each])
        return whole, self._joined(leave_one_outs) if leave_one_outs else None

    def _joined(self, groups: Sequence[RowDistribution]) -> RowDistribution:
        """The distributions of the groups as one of all live rows."""
        return groups[0] if self._order is None else join(groups, self._order)

    @property
    def bound(self) -> bool:
        """Whether what is computed at a position depends on more than the model's logits there."""
        request = self.request
        return bool(self.limits) or request.repetition_penalty is not None or request.min_new_tokens > 0

    @property
    def early(self) -> Tensor:
        """[B, L + 1] bool: the positions where no end token may stand."""
        canvas = self.canvas
        early = np.arange(canvas.length + 1) - canvas.prompt[:, None] < self.request.min_new_tokens
        return torch.from_numpy(early).to(canvas.tokens.device)

    def max_logits(self) -> np.ndarray:
        """What `Canvas.max_logits` gives: infinite where nothing is to be queried."""
        assert self.last_states is not None
        highest = self.last_states.max_logits()
        return highest if self.visible is None else np.where(self.visible.which, highest, np.inf)

    @property
    def attention(self) -> AttentionMaps | None:
        """Of the last forward, where a stage reads it."""
        return None if self.reading is None else self.reading.joined(self._order)

    @property
    def row(self) -> MaskedForward | None:
        """What the last forward predicts beyond the block, where a stage reads it."""
        return self if self.whole else None

    # --- predictions of the last forward, at any of its positions ---

    def has(self, positions: Tensor) -> Tensor:
        """Whether the forward predicts each of `positions` [B, K] -> bool [B, K]."""
        each = [
            hidden.has(self.with_unconditional_rows(self.model.rows(self._of(positions, group))))[: len(group.want)]
            for group, hidden in zip(self._groups, self._hidden, strict=True)
        ]
        has = torch.cat(each)[self._order] if self._order is not None else each[0]
        if self.visible is None:
            return has
        return has & torch.from_numpy(self.visible.slots >= 0).to(has.device).gather(1, positions)

    def at(self, positions: Tensor) -> Distribution:
        """The distribution at `positions` [B, K]."""
        each = []
        for group, hidden in zip(self._groups, self._hidden, strict=True):
            chosen = self._of(positions, group)
            each.append(
                self._distribution(hidden, group, chosen, self.with_unconditional_rows(self.model.rows(chosen)))
            )
        return self._joined(each)

    def raw(self, positions: Tensor | None = None) -> Distribution:
        """Before anything but guidance has changed it: of the block, or at `positions` [B, K] as `at`."""
        if positions is None:
            return self._joined(self._raw)
        each = []
        for group, hidden in zip(self._groups, self._hidden, strict=True):
            chosen = self._of(positions, group)
            each.append(self._unprocessed(hidden, len(chosen), self.with_unconditional_rows(self.model.rows(chosen))))
        return self._joined(each)

    # --- one forward ---

    def _forward(
        self, group: Group, wanted: np.ndarray, soft: Tensor | None, forward: Callable[[Plan, KVCache | None], Hidden]
    ) -> tuple[RowDistribution, RowDistribution | None]:
        """The distribution of one group, and its shadow's."""
        canvas = self.canvas
        want = group.want if self.last_states is None else self.last_states.want(group)
        tokens, index, narrow = self._at(canvas.tokens, group), None, not self.whole and self.last_states is None
        if self.model.decoding_config.uniform:
            tokens = noised(tokens, group, canvas, self.request, self.model.vocab_size)
        positions = self._of(self.canvas.window, group)
        if want.device.type == "cpu" and not self.leave_one_out:  # elsewhere constant shapes are faster
            want, index, positions = wanted_only(group, want, wanted, positions, self.model.vocab_size, self.bound)
            narrow = narrow and (group.plan.width - want.shape[1]) * len(want) * self.model.width >= _NARROW_GAIN
        if self.leave_one_out:
            tokens = torch.cat([tokens, torch.full_like(positions, self.canvas.mask_id)], 1)
        if self.given is not None:
            unconditional = tokens.clone()
            given = self._at(self.given, group)
            unconditional[:, : given.shape[1]].masked_fill_(given, self.canvas.mask_id)
            tokens = torch.cat([tokens, unconditional])
        plan = replace(group.plan, tokens=tokens, want=self.with_unconditional_rows(want), narrow=narrow)
        if self.model.follows_canvas:  # what is a mask changes from forward to forward
            masks = self._of(canvas.open, group)[:, : canvas.length]
            begin = self._of(torch.from_numpy(canvas.block_start).to(masks.device), group)
            plan = replace(
                plan,
                visible=self.model.visible(self.with_unconditional_rows(masks), self.with_unconditional_rows(begin)),
            )
        if soft is not None:
            plan = replace(plan, soft=self.with_unconditional_rows(at_queries(self._of(soft, group), group, canvas)))
        self._runs.append((plan, self.cache))
        hidden = forward(plan, self.cache)
        if self.reading is not None:
            self.reading.add(hidden, group)
        if self.last_states is not None:
            hidden = self.last_states.update_and_merge(hidden, group)
        if self.whole:
            self._hidden.append(hidden)
        if self.request.logprobs is not None:
            raw = self._unprocessed(hidden, len(group.want))
            self._raw.append(raw if index is None else raw.reindexed(index))
        if self.leave_one_out and not needs_chunks(2 * tokens.shape[0] * self.leave_one_out, self.model.vocab_size):
            own, leave_one_out = (
                self._processed(both, group, positions) for both in self._guided(hidden.logits()).chunk(2, 1)
            )
            return DenseDistribution(own), DenseDistribution(leave_one_out)
        if self.leave_one_out:
            ends = (0, self.leave_one_out)
            chunks, leave_one_outs = (self._distribution(hidden, group, positions, first=first) for first in ends)
            return chunks, leave_one_outs
        distribution = self._distribution(hidden, group, positions)
        if index is None:
            return distribution, None
        return distribution.reindexed(index), None

    def _distribution(
        self, hidden: Hidden, group: Group, positions: Tensor, queries: Tensor | None = None, first: int = 0
    ) -> RowDistribution:
        """The distribution at `positions` [n, M], without the mask id and tokens that are not allowed there.

        Args:
            queries: the absolute positions whose outputs predict them, [copies * n, M]; None: the plan's `want`.
            first: with a shadow, the first of the wanted columns to read.
        """
        n, vocab = len(positions), self.model.vocab_size
        every = (hidden.plan.want if queries is None else queries).shape[1]
        if not needs_chunks(self.copies * n * every, vocab):
            return DenseDistribution(self._processed(self._guided(hidden.logits(queries)), group, positions))
        raw = self._unprocessed(hidden, n, queries, first)

        def make(index: Tensor) -> Tensor:
            row, column = index.div(raw.index.shape[1], rounding_mode="floor"), index % raw.index.shape[1]
            return self._processed(raw.logits_of_rows(index), group, positions[row, column], row)

        return ChunkedDistribution(make, raw.count, vocab, raw.index)

    def _unprocessed(
        self, hidden: Hidden, n: int, queries: Tensor | None = None, first: int = 0
    ) -> ChunkedDistribution:
        """The model's own distribution, guidance included, at the positions [n, M] of `_distribution`.

        The head runs when logits are read, and only for those: nothing is kept but the forward's hidden states.
        """
        every = (hidden.plan.want if queries is None else queries).shape[1]
        width = self.leave_one_out if self.leave_one_out and queries is None else every

        def logits_of_rows(index: Tensor) -> Tensor:
            at = index.div(width, rounding_mode="floor") * every + first + index % width
            both = at if self.cfg is None else torch.cat([at, at + n * every])
            return self._guided(hidden.some(both, queries))

        index = torch.arange(n * width, device=self.canvas.tokens.device).view(n, width)
        return ChunkedDistribution(logits_of_rows, n * width, self.model.vocab_size, index)

    def with_unconditional_rows(self, tensor: Tensor) -> Tensor:
        """The rows once more, for the unconditional half of guidance."""
        return tensor if self.cfg is None else torch.cat([tensor, tensor])

    def _guided(self, logits: Tensor) -> Tensor:
        if self.cfg is not None:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + self.cfg * (conditional - unconditional)
        return logits

    def failure(self) -> PardecError | None:
        """Why logits of the last forward are not finite; None where running it again does not show it."""
        return finite.failure(self.model, self._runs, cfg=self.request.cfg)

    def _processed(self, logits: Tensor, group: Group, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """`logits` with penalties, without the mask id and tokens that are not allowed; adds them to `highest`.

        May change them in place. They belong to `positions` [n, M], or to one position [N] of each of these `rows` [N]
        of the group.
        """
        request = self.request

        def at(values: Tensor) -> Tensor:  # [B, L + 1] -> as `positions`
            values = self._of(values, group)
            return values.gather(1, positions) if rows is None else values[rows, positions]

        if self.counts is not None and request.repetition_penalty is not None:
            own = torch.where(at(self.canvas.open), -1, at(self.canvas.tokens))
            counts = self._of(self.counts, group)
            counts = counts[:, None] if rows is None else counts[rows]
            logits = penalize(logits, counts, own, request.repetition_penalty)
        if self.canvas.mask_id < logits.shape[-1]:
            logits.select(-1, self.canvas.mask_id).fill_(-torch.inf)
        if request.min_new_tokens:
            logits = without_ends(logits, at(self.early), request.stop_ids)
        if self.limits:
            live = self._of(torch.arange(len(self.canvas), device=logits.device), group)
            own = live[:, None] if rows is None else live[rows]
            logits = logits.masked_fill_(~self.limits.mask(own, positions), -torch.inf)
        self.highest = self.highest + finite.highest(logits)
        return logits

    @staticmethod
    def _of(values: Tensor, group: Group) -> Tensor:
        """The group's rows of `values` [B, ...]."""
        return values if group.rows is None else values[torch.from_numpy(group.rows).to(values.device)]

    def _at(self, values: Tensor, group: Group) -> Tensor:
        """`values` [B, L + 1] at the queries of a group, [n, Q]."""
        values = self._of(values, group)
        if group.source is not None:
            return values.gather(1, group.source)
        assert group.plan.span is not None
        return values[:, slice(*group.plan.span)]
