"""The forward of the masked loop: from the queried positions to the active block's distribution.

`MaskedForward` is the plain forward. Guidance, second predictions, stored states, attention maps, vectors added to
inputs and predictions beyond the block hook into it; they are listed once, when the request is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models import finite
from pardec.models.caches.kv_cache import KVCache
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.errors import PardecError
from pardec.models.images.conditioned import Shifted, copy_cache_rows
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, IdSubset, Plan, Ranking

from ..batching import RowState
from ..host_transfer import download, upload
from ..ops.chunked_distribution import CHUNK_BYTES, ChunkedDistribution, RowDistribution, join, needs_chunks
from ..ops.confidence import Confidence, confidence
from ..ops.distribution import DenseDistribution, Distribution, split
from ..prefix_reuse import PrefixReuse
from ..trace import PROMPT
from ..traits import Trait
from .canvas import Canvas
from .constraints import CountPenalty, EarlyEnds, LogitBias, RepetitionPenalty, TokenLimits
from .contracts import AttentionMaps, AttentionSpec, Cache, Evidence, MaskedSampler, Request, united
from .ops.uniform_noise import random_tokens
from .query_plan import Group, Layout, Queries, QueryPlanner, VisiblePositions, wanted_columns

_NARROW_GAIN = 2000  # computing only the wanted outputs of the last layer pays if it saves at least this many values
_CAPTURED = 1 << 24  # the most logits that are part of a captured forward, whose memory is never given to others

_LOGITS: tuple[Any, ...] = (LogitBias, RepetitionPenalty, CountPenalty)  # applied in this order

Prepare = Callable[[Plan, Group], Plan]
Read = Callable[[Hidden, Group, "Tensor | None"], Hidden]
Process = Callable[[Tensor, Group, "Tensor | None", "Tensor | None"], Tensor]
Complete = Callable[[Evidence], Evidence]


@dataclass(frozen=True, slots=True)
class MaskedTail:
    """Computes, from the logits alone: the logits without the mask id, their maximum, and their confidence."""

    mask_id: int

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        if self.mask_id < logits.shape[-1]:
            logits.select(-1, self.mask_id).fill_(-torch.inf)
        return logits, logits.amax(-1), *confidence(logits)


class MaskedForward(RowState):
    """The forward of one request: predicts the wanted positions of the active block.

    Plans are laid when the queried positions change. Features beyond the plain forward are hooks:

    Attributes:
        begin: called before each forward.
        prepare: each changes the plan of a group of rows.
        read: each reads, or replaces, the states of a group, given each block position's index among the wanted ones.
        mix: each combines copies of the rows.
        process: each changes logits, [n, M, V] at positions [n, M] of a group, or [N, V] at one position of each of
            some rows [N].
        complete: each adds to the evidence.
    """

    per_row: ClassVar[tuple[str, ...]] = ("guidance", "last_states", "limits", "reuse", "visible")
    leave_one_out = 0  # positions per row added for the leave-one-out prediction of the block

    def __init__(
        self,
        model: LanguageModel,
        canvas: Canvas,
        sampler: MaskedSampler,
        request: Request,
        soft: Callable[[], Tensor | None] | None = None,
    ) -> None:
        """`soft` makes the vectors [B, W, E] that are added to the inputs of the block; None if no stage adds any."""
        self.model, self.canvas, self.request = model, canvas, request
        # With image conditions, the wrapped model applies guidance: see `samplers.request.conditioned_model`.
        guided = request.cfg is not None and not request.conditions
        self.copies = 2 if guided else 1
        self.guidance = Guidance(request.cfg, canvas) if guided and request.cfg is not None else None
        traits = sampler.traits
        self.last_states = LastStates(model, canvas) if Trait.REUSES_PREDICTIONS in traits else None
        self.visible = None if sampler.query is None else VisiblePositions(canvas)
        self.limits = TokenLimits.of(request, canvas)
        self.soft = None if soft is None else SoftInputs(soft, canvas, self.copies)
        self.cache: KVCache | None = None
        if Trait.STORES_KV in traits or self.leave_one_out or request.conditions:
            capacity = int(canvas.total.max()) + self.extra_slots
            reuse = sampler.cache.layer_reuse(model.layers)
            self.cache = model.new_cache(self.copies * len(canvas), capacity, reuse=reuse)
        tells = self.guidance is None and type(sampler.cache).final is not Cache.final
        self.reuse = PrefixReuse(model, self.cache if tells else None, len(canvas))
        self.planner = QueryPlanner(
            canvas, self.reuse, self.visible, every=bool(sampler.revising), stored=self.last_states is not None
        )
        attention = united(stage.reads_attention(model.layers) for stage in sampler.stages)
        self.attention = None
        if attention is not None:
            self.attention = AttentionReading(attention, self, model.layers)
        self.layout = self._layout(Layout(model, canvas, self.cache, self.copies, self.leave_one_out, attention))
        fills, cuts = Trait.FILLS_ROWS in traits or Trait.READS_WHOLE_ROW in traits, Trait.CUTS_ROWS in traits
        self.predictions = RowPredictions(self, always=fills) if fills or cuts else None
        self.raw = RawDistribution(self) if request.logprobs is not None else None
        self.compact = canvas.tokens.device.type == "cpu"  # on a GPU constant shapes are faster
        self.highest = torch.zeros((), device=canvas.tokens.device)  # sum of the highest logits so far: see `finite`
        self.groups: list[Group] = []
        self.ranking: Ranking | None = None  # importance of positions in the coming forward
        self.order: Tensor | None = None  # each live row's index in the concatenated groups; None: one group
        self.runs: list[finite.Run] = []  # the last forward, one per group
        self._key = b""
        self._many = False  # whether there may be too many logits to keep
        self.compose()

    def compose(self) -> None:
        """Sets the hooks that the request and its sampler need."""
        parts = [
            Noise(self.canvas, self.request, self.model.vocab_size) if self.model.decoding_config.uniform else None,
            self._own_hooks(),
            self.guidance,
            FollowedCanvas(self.model, self.canvas, self.copies) if self.model.follows_canvas else None,
            self.soft,
            self.attention,
            self.last_states,
            self.predictions,
            self.raw,
            *(part.of(self.request, self.canvas, self.model.vocab_size) for part in _LOGITS),
            EarlyEnds.of(self.request, self.canvas),
            self.limits,
        ]

        def hooks(name: str) -> tuple[Any, ...]:
            return tuple(getattr(part, name) for part in parts if hasattr(part, name))

        captured = isinstance(self.model.decoder, GraphRunner) and not self.request.conditions
        plain = not any(map(hooks, ("read", "mix", "process"))) and type(self) is MaskedForward
        self.tail = MaskedTail(self.canvas.mask_id) if captured and plain else None
        self.begin: tuple[Callable[[], None], ...] = hooks("begin")
        self.prepare: tuple[Prepare, ...] = hooks("prepare")
        self.read: tuple[Read, ...] = hooks("read")
        self.mix: tuple[Callable[[Tensor], Tensor], ...] = hooks("mix")
        self.process: tuple[Process, ...] = hooks("process")
        self.complete: tuple[Complete, ...] = hooks("complete")

    def _own_hooks(self) -> object | None:
        return None

    def _layout(self, layout: Layout) -> Layout:
        return layout

    @property
    def extra_slots(self) -> int:
        """Slots after the canvas."""
        return self.leave_one_out

    def predict(self, queries: Queries, wanted: np.ndarray) -> Distribution:
        """One forward for every live row: the model's distribution at the `wanted` positions of the active block.

        The values at the block's other positions are meaningless.
        """
        for begin in self.begin:
            begin()
        canvas, run = self.canvas, self.model.run  # the same plan with other tokens is checked already
        key = queries.key + canvas.block_start.tobytes() + canvas.block_end.tobytes() + canvas.end.tobytes()
        if key != self._key:
            self.lay(queries)
            self._key = key
            run = self.model.run if self.request.conditions else self.model.forward  # conditions are no tokens
        self.runs.clear()
        self.ranking = queries.ranking
        each = [self._predict(group, wanted, run) for group in self.groups]
        return each[0] if self.order is None else join(each, self.order)

    def captures(self, positions: int) -> bool:
        """Whether the logits at this number of positions are few enough to be part of a captured forward."""
        return positions * self.model.vocab_size <= _CAPTURED and not needs_chunks(positions, self.model.vocab_size)

    def lay(self, queries: Queries) -> None:
        self.groups, self.order = self.layout.plan_groups(queries)
        if self.last_states is not None:
            self.groups = [replace(group, want=self.last_states.want(group)) for group in self.groups]
        self._many = needs_chunks(max(self.copies * group.want.numel() for group in self.groups), self.model.vocab_size)

    def _predict(
        self, group: Group, wanted: np.ndarray, run: Callable[[Plan, KVCache | None], Hidden]
    ) -> RowDistribution:
        """The distribution of one group of rows."""
        want, index, narrow = group.want, None, True
        positions = group.of(self.canvas.window) if self.process else None
        if self.compact:
            columns, index = wanted_columns(group, wanted, self.model.vocab_size)
            if columns is not None:
                want = want.gather(1, columns)
                positions = None if positions is None else positions.gather(1, columns)
            narrow = (group.plan.tokens.shape[1] - want.shape[1]) * len(want) * self.model.width >= _NARROW_GAIN
        plan = replace(group.plan, tokens=group.at_queries(self.canvas.tokens), want=want, narrow=narrow)
        if self.ranking is not None:
            plan = replace(plan, ranking=group.ranked(self.ranking))
        if self.tail is not None and index is None and self.captures(want.numel()):
            plan = replace(plan, tail=self.tail)
        for prepare in self.prepare:
            plan = prepare(plan, group)
        self.runs.append((plan, self.cache))
        hidden = run(plan, self.cache)
        for read in self.read:
            hidden = read(hidden, group, index)
        distribution = self.distribution(hidden, group, positions)
        return distribution if index is None else distribution.reindexed(index)

    def distribution(self, hidden: Hidden, group: Group, positions: Tensor | None) -> RowDistribution:
        """The distribution at the wanted positions, without the mask id and tokens that are not allowed there."""
        if self._many and needs_chunks(hidden.plan.want.numel(), self.model.vocab_size):
            return self.chunked(hidden, group, positions)
        if hidden.made:  # the forward was captured with all of it
            logits, highest, *statistics = hidden.made
            self.highest = self.highest + highest.sum()
            return DenseDistribution(logits, known=Confidence(*statistics))
        logits = hidden.logits()
        for mix in self.mix:
            logits = mix(logits)
        return DenseDistribution(self.processed(logits, group, positions))

    def processed(self, logits: Tensor, group: Group, positions: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """`logits` with the mask id and tokens that the request excludes at -inf; updates `highest`.

        May change them in place. They belong to `positions` [n, M], or to one position [N] of each of these `rows` [N]
        of the group.
        """
        for process in self.process:
            logits = process(logits, group, positions, rows)
        if self.canvas.mask_id < logits.shape[-1]:
            logits.select(-1, self.canvas.mask_id).fill_(-torch.inf)
        self.highest = self.highest + logits.amax(-1).sum()
        return logits

    # --- logits in chunks, and at any position ---

    def at(self, hidden: Hidden, group: Group, positions: Tensor) -> RowDistribution:
        """The distribution at `positions` [n, M] of a group."""
        queries = self.with_copies(self.model.rows(positions))
        if needs_chunks(queries.numel(), self.model.vocab_size):
            return self.chunked(hidden, group, positions, queries)
        logits = hidden.logits(queries)
        for mix in self.mix:
            logits = mix(logits)
        return DenseDistribution(self.processed(logits, group, positions))

    def chunked(
        self, hidden: Hidden, group: Group, positions: Tensor | None, queries: Tensor | None = None, first: int = 0
    ) -> ChunkedDistribution:
        """Like `at`, computed in chunks.

        Args:
            queries: the absolute positions whose outputs predict them, [copies * n, M]; None: the plan's `want`.
            first: with a second prediction of the block, the first of the wanted columns to read.
        """
        raw = self._unprocessed(hidden, len(group.want), queries, first)

        def make(index: Tensor) -> Tensor:
            row, column = index.div(raw.index.shape[1], rounding_mode="floor"), index % raw.index.shape[1]
            own = None if positions is None else positions[row, column]
            return self.processed(raw.logits_of_rows(index), group, own, row)

        return ChunkedDistribution(make, raw.count, self.model.vocab_size, raw.index)

    def _unprocessed(
        self, hidden: Hidden, n: int, queries: Tensor | None = None, first: int = 0
    ) -> ChunkedDistribution:
        """The model's own distribution, guidance included, at the positions [n, M] of `chunked`.

        The head runs when logits are read, and only for those: nothing is kept but the forward's hidden states.
        """
        every = (hidden.plan.want if queries is None else queries).shape[1]
        width = self.leave_one_out if self.leave_one_out and queries is None else every

        def logits_of_rows(index: Tensor) -> Tensor:
            at = index.div(width, rounding_mode="floor") * every + first + index % width
            logits = hidden.some(torch.cat([at + n * every * copy for copy in range(self.copies)]), queries)
            for mix in self.mix:
                logits = mix(logits)
            return logits

        index = torch.arange(n * width, device=self.canvas.tokens.device).view(n, width)
        return ChunkedDistribution(logits_of_rows, n * width, self.model.vocab_size, index)

    def with_copies(self, tensor: Tensor) -> Tensor:
        """The rows repeated for the unconditional half of guidance."""
        return tensor if self.copies == 1 else torch.cat([tensor] * self.copies)

    # --- for the loop and the canvas ---

    @property
    def sequences(self) -> int:
        """The number of sequences that run for each row: 2 under guidance, else 1."""
        return self.copies * (1 if self.cache is None else self.cache.copies)

    def max_logits(self) -> np.ndarray:
        """[B, L]: the values of `Canvas.max_logits`; infinite at invisible positions."""
        assert self.last_states is not None
        highest = self.last_states.max_logits()
        return highest if self.visible is None else np.where(self.visible.which, highest, np.inf)

    def failure(self) -> PardecError | None:
        """The error for logits of the last forward that are not finite; None if a second run does not reproduce it."""
        return finite.failure(self.model, self.runs, cfg=self.request.cfg)

    # --- rows that leave and join ---

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows, in the cache as well."""
        super().keep(rows)
        if self.cache is not None and len(rows):
            self.cache.keep(torch.from_numpy(self.layout.cache_rows(rows)))

    def before_join(self, where: np.ndarray, other: Self) -> None:
        """Makes room for the rows of `other`, which are in the canvas at `where` and have had no forward.

        Their first forward computes or copies all K/V, so that stale entries of the cache are never seen.
        """
        if (self.limits is None) != (other.limits is None):
            for forward in (self, other):
                forward.limits = forward.limits or TokenLimits(None, (), forward.canvas)
                forward.compose()
        if self.request.conditions and self.cache is not None and other.cache is not None:
            copy_cache_rows(self.model.decoder, self.cache, torch.from_numpy(where), other.model.decoder, other.cache)
        elif self.cache is not None and other.cache is not None:
            self.cache.grow(other.cache.capacity)

    def rows_changed(self) -> None:
        self._key = b""

    def close(self) -> None:
        """Returns the leases of the prefix cache and drops the hooks, which refer to the forward."""
        self.reuse.close()
        self.begin = self.prepare = self.read = self.mix = self.process = self.complete = ()
        self.soft = self.attention = self.predictions = self.raw = None
        self.canvas.max_logits = None


class LeaveOneOutForward(MaskedForward):
    """Also predicts each block position from an extra mask that attends to every position but this one."""

    def __init__(self, model: LanguageModel, canvas: Canvas, sampler: MaskedSampler, *more: Any, **named: Any) -> None:
        self.leave_one_out = canvas.block_length
        self._second: list[RowDistribution] = []  # one per group
        super().__init__(model, canvas, sampler, *more, **named)
        self.compact = False

    def _own_hooks(self) -> object:
        return LeaveOneOut(self)

    def begin_forward(self) -> None:
        """Drops the leave-one-out predictions of the last forward."""
        self._second.clear()

    def second(self) -> RowDistribution:
        """The leave-one-out prediction of the block by the last forward."""
        return self._second[0] if self.order is None else join(self._second, self.order)

    def distribution(self, hidden: Hidden, group: Group, positions: Tensor | None) -> RowDistribution:
        tokens = hidden.plan.tokens
        if needs_chunks(2 * len(tokens) * self.leave_one_out, self.model.vocab_size):
            self._second.append(self.chunked(hidden, group, positions, first=self.leave_one_out))
            return self.chunked(hidden, group, positions)
        logits = hidden.logits()
        for mix in self.mix:
            logits = mix(logits)
        own, other = (DenseDistribution(self.processed(both, group, positions)) for both in logits.chunk(2, 1))
        self._second.append(other)
        return own


# --- hooks of the forward ---


class LeaveOneOut:
    """The extra masks for the leave-one-out prediction, after the canvas."""

    def __init__(self, forward: LeaveOneOutForward) -> None:
        self.forward, self.begin = forward, forward.begin_forward

    def prepare(self, plan: Plan, group: Group) -> Plan:
        canvas = self.forward.canvas
        masks = torch.full_like(group.of(canvas.window), canvas.mask_id)
        return replace(plan, tokens=torch.cat([plan.tokens, masks], 1))

    def complete(self, evidence: Evidence) -> Evidence:
        return replace(evidence, leave_one_out=self.forward.second())


class DraftedForward(LeaveOneOutForward):
    """A forward whose leave-one-out predictions see the last forward's likely tokens in place of masks.

    It also computes copies of the block's positions, after the canvas, which does not see them:

    - a token copy of each open position p that is drafted: the likeliest token of p by the last forward;
    - a copy of the position r whose output predicts each open position p: p itself, or p - 1 in a shifted family. Its
      input is the mask if r = p, else what the filled canvas has at r.

    Both see the canvas without its drafted positions, and the token copies in their place. A copy that predicts p sees
    itself in place of r, and of p no more than its mask.

    Attributes:
        drafted: [B, L + 1] bool on the host: the positions that had a likely token in the last forward.
        likely: [B, L + 1] int64: these tokens.
    """

    per_row = ("drafted", "likely")

    def __init__(self, model: LanguageModel, canvas: Canvas, sampler: MaskedSampler, *more: Any, **named: Any) -> None:
        least = sampler.select.drafts_above
        assert least is not None, "the select asks for drafts"
        self.least = least
        self.drafted: np.ndarray = np.zeros(canvas.open_host.shape, dtype=bool)
        self.likely = torch.zeros_like(canvas.tokens)
        super().__init__(model, canvas, sampler, *more, **named)

    @property
    def extra_slots(self) -> int:
        return 2 * self.leave_one_out

    def _layout(self, layout: Layout) -> Layout:
        return DraftedLayout(**vars(layout), forward=self)

    def _own_hooks(self) -> object:
        return Drafts(self)

    def note(self, read: Mapping[str, np.ndarray]) -> None:
        """Keeps which positions the last forward has drafted."""
        self.drafted = read["drafted"]

    def begin_forward(self) -> None:
        super().begin_forward()
        self._key = b""  # the copies change with the drafts


class Drafts(LeaveOneOut):
    """The inputs of the copies, and the drafts for the next forward."""

    forward: DraftedForward

    def prepare(self, plan: Plan, group: Group) -> Plan:
        forward, canvas = self.forward, self.forward.canvas
        count = len(group.want)
        at = group.plan.positions[:count, plan.tokens.shape[1] :]
        filled = torch.where(upload(forward.drafted, at.device) & canvas.open, forward.likely, canvas.tokens)
        inputs = group.of(filled).gather(1, at.clamp(min=0))
        block, width = group.of(canvas.window), group.plan.width
        query = group.plan.want[:count, block.shape[1] :]  # index of the copy that predicts each block position
        itself = (query >= 0) & (block == (block - canvas.shift).clamp(min=0))
        masks = torch.zeros(count, width + 1, dtype=torch.bool, device=at.device)
        masks.scatter_(1, torch.where(itself, query, width), True)
        # Padding too: it was read at position 0, where an image has its condition, which is no token.
        inputs = inputs.masked_fill(masks[:, plan.tokens.shape[1] : -1] | (at < 0), canvas.mask_id)
        return replace(plan, tokens=torch.cat([plan.tokens, inputs], 1))

    def complete(self, evidence: Evidence) -> Evidence:
        forward, canvas = self.forward, self.forward.canvas
        ids, probability = evidence.distribution.greedy
        likely = evidence.predicted & (probability > forward.least)
        forward.likely.scatter_(1, evidence.positions, ids)
        drafted = torch.zeros(canvas.tokens.shape, dtype=torch.bool, device=ids.device)
        drafted.scatter_(1, evidence.positions, likely)
        canvas.read_later({"drafted": drafted}, forward.note)
        return super().complete(evidence)


@dataclass(frozen=True)
class DraftedLayout(Layout):
    """Plans with the copies of a `DraftedForward`."""

    forward: DraftedForward | None = None

    def with_leave_one_out(
        self, rows: np.ndarray, positions: np.ndarray, slots: np.ndarray, wanted: np.ndarray, want: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens, copies = self._copies(rows, wanted)
        extra = np.concatenate([tokens, copies], 1)
        own = np.where(extra < 0, -1, self.canvas.length + np.arange(extra.shape[1]))
        used = (extra >= 0).any(0)
        query = positions.shape[1] + np.maximum(used.cumsum() - 1, 0)[self.leave_one_out :]
        return (
            np.concatenate([positions, extra[:, used]], 1),
            np.concatenate([slots, own[:, used]], 1),
            np.concatenate([want, np.where(copies < 0, -1, query)], 1),
        )

    def visible_to_copies(
        self, rows: np.ndarray, positions: np.ndarray, own: np.ndarray, wanted: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        canvas, width, most = self.canvas, positions.shape[1], self.leave_one_out
        slots = np.arange(canvas.length)
        tokens, copies = self._copies(rows, wanted)
        extra = np.concatenate([tokens, copies], 1)
        used = (extra >= 0).any(0)
        visible = np.zeros((len(rows), width + extra.shape[1], canvas.length + extra.shape[1]), dtype=bool)
        visible[..., : canvas.length] = slots < end[:, None, None]
        drafted = (slots == tokens[..., None]).any(1)  # [n, L]
        visible[:, width:, : canvas.length] &= ~drafted[:, None]
        visible[:, width:, canvas.length : canvas.length + most] = (tokens >= 0)[:, None]
        block = canvas.window_host[rows]
        own_slot, target = slots == copies[..., None], slots == block[..., None]  # [n, W, L]
        seen = visible[:, width + most :]
        seen[..., : canvas.length] |= target & drafted[:, None] & (slots < end[:, None, None])
        seen[..., : canvas.length] &= ~own_slot
        replaced = (tokens[:, None] == copies[..., None]) | (tokens[:, None] == block[..., None])
        seen[..., canvas.length : canvas.length + most] &= ~replaced
        seen[..., canvas.length + most :] = np.eye(most, dtype=bool)
        return np.concatenate([visible[:, :width], visible[:, width:][:, used]], 1)

    def _copies(self, rows: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n, W] the positions of token copies, and of the copies that predict each block position; -1: none."""
        assert self.forward is not None, "made for one"
        block, length = self.canvas.window_host[rows], self.canvas.length
        open_ = np.take_along_axis(self.canvas.open_host[rows], block, 1) & (block < length) & (wanted >= 0)
        drafted = np.take_along_axis(self.forward.drafted[rows], block, 1)
        return np.where(open_ & drafted, block, -1), np.where(open_, wanted, -1)


class Guidance(RowState):
    """Classifier-free guidance: the second half of a forward's rows repeats every row without its prompt."""

    per_row = ("given",)
    fills: Mapping[str, float] = {"given": True}

    def __init__(self, scale: float, canvas: Canvas) -> None:
        self.scale, self.mask_id = scale, canvas.mask_id
        self.given = canvas.commit_step == PROMPT  # [B, L + 1]

    def prepare(self, plan: Plan, group: Group) -> Plan:
        given = group.at_queries(self.given)
        copies = group.plan.positions[: len(given), given.shape[1] :]  # of canvas positions, after the canvas
        given = torch.cat([given, group.of(self.given).gather(1, copies.clamp(min=0))], 1)
        unconditional = plan.tokens.masked_fill(given, self.mask_id)
        return replace(plan, tokens=torch.cat([plan.tokens, unconditional]), want=torch.cat([plan.want, plan.want]))

    def mix(self, logits: Tensor) -> Tensor:
        conditional, unconditional = logits.chunk(2)
        return unconditional + self.scale * (conditional - unconditional)


@dataclass(frozen=True)
class Noise:
    """Replaces masks by random tokens, new ones at each step, for families trained on uniform noise."""

    canvas: Canvas
    request: Request
    vocab: int

    def prepare(self, plan: Plan, group: Group) -> Plan:
        canvas, tokens = self.canvas, plan.tokens
        at = group.plan.positions[: len(tokens), : tokens.shape[1]]
        rows = np.arange(len(canvas)) if group.rows is None else group.rows
        noise = random_tokens(self.request.source, canvas.rows[rows], canvas.step[rows], at.clamp(min=0), self.vocab)
        return replace(plan, tokens=torch.where(tokens == canvas.mask_id, noise, tokens))


@dataclass(frozen=True)
class FollowedCanvas:
    """The attention mask in families where it depends on which positions are masks."""

    model: LanguageModel
    canvas: Canvas
    copies: int

    def prepare(self, plan: Plan, group: Group) -> Plan:
        canvas = self.canvas
        masks = group.of(canvas.open)[:, : canvas.length]
        start = group.of(upload(canvas.denoised_from, masks.device))
        visible = self.model.visible(*(torch.cat([each] * self.copies) for each in (masks, start)))
        return replace(plan, visible=visible)


class SoftInputs:
    """Vectors that stages add to the inputs of the active block."""

    def __init__(self, make: Callable[[], Tensor | None], canvas: Canvas, copies: int) -> None:
        self.make, self.canvas, self.copies = make, canvas, copies
        self.values: Tensor | None = None  # [B, W, E] for the coming forward

    def begin(self) -> None:
        self.values = self.make()

    def prepare(self, plan: Plan, group: Group) -> Plan:
        if self.values is None:
            return plan
        soft = group.of(self.values)
        start = group.of(upload(self.canvas.block_start, soft.device))
        at = group.plan.positions[: len(soft)] - start[:, None]
        outside = (at < 0) | (at >= soft.shape[1])
        values = soft.gather(1, at.masked_fill(outside, 0)[..., None].expand(-1, -1, soft.shape[-1]))
        values = values.masked_fill(outside[..., None], 0)
        return replace(plan, soft=torch.cat([values] * self.copies))


class RowPredictions:
    """The predictions of the last forward at any position that it computed."""

    def __init__(self, forward: MaskedForward, *, always: bool) -> None:
        """`always`: available for every forward; else only for those at which a row enters a block."""
        self.forward, self.always = forward, always
        self.hidden: list[Hidden] = []  # one per group
        self.whole = always  # whether the coming (or last) forward's predictions are available

    def begin(self) -> None:
        self.hidden.clear()
        self.whole = self.always or bool(self.forward.canvas.block_started.any())

    def prepare(self, plan: Plan, group: Group) -> Plan:
        return replace(plan, narrow=False) if self.whole else plan

    def read(self, hidden: Hidden, group: Group, index: Tensor | None) -> Hidden:
        if self.whole:
            self.hidden.append(hidden)
        return hidden

    def complete(self, evidence: Evidence) -> Evidence:
        return replace(evidence, predictions=self) if self.whole else evidence

    def has(self, positions: Tensor) -> Tensor:
        """[B, K] bool: whether the forward predicts each of `positions` [B, K]."""
        forward = self.forward
        each = [
            hidden.has(forward.with_copies(forward.model.rows(group.of(positions))))[: len(group.want)]
            for group, hidden in zip(forward.groups, self.hidden, strict=True)
        ]
        has = each[0] if forward.order is None else torch.cat(each)[forward.order]
        if forward.visible is None:
            return has
        return has & upload(forward.visible.slots >= 0, has.device).gather(1, positions)

    def at(self, positions: Tensor) -> Distribution:
        """The distribution at `positions` [B, K]."""
        forward = self.forward
        parts = zip(forward.groups, self.hidden, strict=True)
        each = [forward.at(hidden, group, group.of(positions)) for group, hidden in parts]
        return each[0] if forward.order is None else join(each, forward.order)


class RawDistribution:
    """The model's distribution with guidance and no other change."""

    def __init__(self, forward: MaskedForward) -> None:
        self.forward = forward
        self.parts: list[RowDistribution] = []  # distributions of the block, one per group

    def begin(self) -> None:
        self.parts.clear()

    def read(self, hidden: Hidden, group: Group, index: Tensor | None) -> Hidden:
        raw = self.forward._unprocessed(hidden, len(group.want))
        self.parts.append(raw if index is None else raw.reindexed(index))
        return hidden

    def of_block(self) -> RowDistribution:
        """The distribution at the positions of the block."""
        return self._joined(self.parts)

    def at(self, positions: Tensor) -> RowDistribution:
        """The distribution at `positions` [B, K]; needs `RowPredictions` of this forward."""
        forward, each = self.forward, []
        assert forward.predictions is not None, "a stage reads it"
        for group, hidden in zip(forward.groups, forward.predictions.hidden, strict=True):
            chosen = group.of(positions)
            queries = forward.with_copies(forward.model.rows(chosen))
            each.append(forward._unprocessed(hidden, len(chosen), queries))
        return self._joined(each)

    def _joined(self, parts: Sequence[RowDistribution]) -> RowDistribution:
        return parts[0] if self.forward.order is None else join(parts, self.forward.order)


class LastStates(RowState):
    """The last hidden state of every position, which gives predictions where a forward does not compute the position.

    The head is a function of a position's last state, so that states replace stored logits at a fraction of
    their memory; both halves of guidance are stored, before they are mixed. Column L is a scratch slot. The first
    forward of a row that joins computes all of its positions.
    """

    per_row = ("states", "highest", "stale", "first")

    def __init__(self, model: LanguageModel, canvas: Canvas) -> None:
        self.canvas, self.shift, self.vocab = canvas, model.decoding_config.shift, model.vocab_size
        imaging = model.imaging
        # For image models only the logits of image codes are compared, as in the published loop, at every position.
        self.ids = None if imaging is None or imaging.layout.ids is None else imaging.layout.ids.to(model.device)
        self.states: Tensor | None = None  # [B, copies, L + 1, E]
        self.head: Callable[[Tensor], Tensor] | None = None  # [N, E] -> [N, V]
        self.subset: IdSubset | None = None
        self.highest = np.zeros(canvas.tokens.shape, dtype=np.float32)  # [B, L + 1]
        self.stale = np.zeros(canvas.tokens.shape, dtype=bool)  # where `highest` is from an earlier state
        self.first = np.zeros(len(canvas), dtype=np.int64)  # [B] where the half with the condition begins

    def rows_changed(self) -> None:
        if self.states is not None:  # rows that join have no states, and may add columns
            more = self.canvas.tokens.shape[1] - self.states.shape[2]
            self.states = pad(self.states, (0, 0, 0, more))

    def want(self, group: Group) -> Tensor:
        """[n, W]: the position whose output predicts each block position, -1 outside of the block."""
        window = group.of(self.canvas.window)
        at = (window - self.shift).clamp(min=0)
        return torch.where(window < self.canvas.length, at, -1)

    def prepare(self, plan: Plan, group: Group) -> Plan:
        return replace(plan, narrow=False)

    def read(self, hidden: Hidden, group: Group, index: Tensor | None) -> Hidden:
        """Stores the states of a forward; returns the forward as if it had computed every position."""
        raw = hidden.hidden if isinstance(hidden, Shifted) else hidden
        count, (_, queries, width) = len(group.want), raw.states.shape
        fresh = raw.states.view(-1, count, queries, width)
        copies, length = len(fresh), self.canvas.length
        if self.states is None:
            self.states = fresh.new_zeros(len(self.canvas), copies, length + 1, width)
        self.head, self.subset = raw.head, raw.subset
        rows, positions = self._rows(group), group.plan.positions[:count]
        at = torch.where(positions < 0, length, positions)
        self.states[rows[:, None], :, at] = fresh.permute(1, 2, 0, 3)
        on_host = np.arange(len(self.canvas)) if group.rows is None else group.rows
        self.stale[on_host[:, None], np.where(group.positions < 0, length, group.positions)] = True
        states = self.states[rows, :, :length].transpose(0, 1).flatten(0, 1)
        order = torch.arange(length, device=states.device).expand(count, length)
        shifts = hidden.shifts if isinstance(hidden, Shifted) else [torch.zeros_like(rows)] * copies
        self.first[on_host] = -download(shifts[0]) if isinstance(hidden, Shifted) else 0
        # The shorter half has no slots before its first one: -1.
        own = torch.cat([(order + by[:, None]).clamp(min=-1) for by in shifts])
        whole = replace(raw, plan=replace(raw.plan, positions=own, slots=own, span=None), states=states)
        if not isinstance(hidden, Shifted):
            return whole
        plan = replace(hidden.plan, positions=order, slots=order, span=None)
        return replace(hidden, plan=plan, states=states, hidden=whole)

    def max_logits(self) -> np.ndarray:
        """[B, L]: the highest logit of each position when it was last computed, in the rows with the condition.

        It is infinite where these rows have no token: before a condition that is shorter than the unconditional one.
        """
        assert self.states is not None, "after a forward"
        assert self.head is not None
        self.stale[:, -1] = False
        row, position = self.stale.nonzero()
        for part in split(np.arange(len(row)), CHUNK_BYTES // (4 * self.vocab)):
            logits = self.head(self.states[torch.from_numpy(row[part]), 0, torch.from_numpy(position[part])])
            if self.subset is not None:
                logits = self.subset.spread(logits)
            if self.ids is not None:
                logits = logits[:, self.ids]
            elif self.canvas.mask_id < self.vocab:
                logits[:, self.canvas.mask_id] = -torch.inf
            self.highest[row[part], position[part]] = download(logits.amax(1).float())
        self.stale[:] = False
        return np.where(np.arange(self.canvas.length) < self.first[:, None], np.inf, self.highest[:, :-1])

    def _rows(self, group: Group) -> Tensor:
        """[n] the live rows of a group."""
        rows = np.arange(len(self.canvas)) if group.rows is None else group.rows
        return upload(rows, self.canvas.tokens.device)


class AttentionReading:
    """Collects the attention maps of a forward from its groups of rows."""

    def __init__(self, spec: AttentionSpec, forward: MaskedForward, count: int) -> None:
        """`count`: the number of the model's layers."""
        self.spec, self.forward, self.canvas, self.count = spec, forward, forward.canvas, count
        self._parts: list[tuple[Tensor, Mapping[int, Tensor]]] = []

    def begin(self) -> None:
        self._parts.clear()

    def read(self, hidden: Hidden, group: Group, index: Tensor | None) -> Hidden:
        """Stores the maps of one group; its first rows are the half with the condition."""
        count, length, plan = len(group.want), self.canvas.length, hidden.plan
        if plan.attending is None:
            width = plan.width - self.forward.leave_one_out
            positions = plan.positions[:count, :width]
            positions = torch.where(positions < 0, length, positions)
        else:
            own = group.of(self.canvas.window)
            width = own.shape[1]
            positions = torch.where(plan.attending[:count] < 0, length, own)
        device = positions.device
        slots = None
        if (visible := self.forward.visible) is not None:  # slots differ from positions
            own_slots = visible.slots if group.rows is None else visible.slots[group.rows]
            slots = upload(own_slots[:, :length], device)
        maps = {
            layer: _as_columns(each[:count, :width].to(device), length, slots)
            for layer, each in hidden.attention.items()
        }
        self._parts.append((positions, maps))
        return hidden

    def complete(self, evidence: Evidence) -> Evidence:
        return replace(evidence, attention=self.joined(self.forward.order))

    def joined(self, order: Tensor | None) -> AttentionMaps:
        """The maps of all live rows; `order` is each row's index in the concatenated groups, None with one group."""
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
    """Weights [n, M, S] over slots as columns [n, M, L + 1] of a canvas; slots from L on are not in the canvas.

    `positions` [n, L] is the slot of each position, -1 for none; None: slots equal positions.
    """
    slots = min(weights.shape[-1], length)
    columns = pad(weights[..., :slots], (0, length + 1 - slots))
    if positions is None:
        return columns
    index = torch.where(positions < 0, length, positions)[:, None].expand(-1, weights.shape[1], -1)
    return pad(columns.gather(-1, index), (0, 1))
