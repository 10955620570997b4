"""The state of a drafting model, with its own KV cache or the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models import finite
from pardec.models.caches.kv_cache import KVCache
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan, Visible
from pardec.models.trimmed import parameters_read

from ..batching import RowState
from ..host_transfer import download, upload
from ..ops.position_sets import first_columns
from ..prefix_reuse import DraftReuse
from ..traits import Trait
from .contracts import (
    DecodeContext,
    Draft,
    Drafter,
    DraftModel,
    RoundResult,
    SpeculativeSampler,
    SubsetLogits,
    Uniforms,
    Verdict,
)
from .forward import CacheRows, catch_up_groups


def parameter_ratio(target: LanguageModel, draft_model: object) -> float | None:
    """A draft model's parameters divided by the target's: a forward spends most of its time on reading them.

    None where there is no draft model.
    """
    return parameters_read(draft_model) / target.parameters if isinstance(draft_model, LanguageModel) else None


class DraftState(RowState):
    """The state of a `StateDrafter` for one request; it drafts, and observes the outcome of each round."""

    context: DecodeContext
    model: LanguageModel  # the drafting model
    runs: list[finite.Run]  # plans and caches of this round's forwards

    def read_prompt(self, rows: np.ndarray, hidden: Hidden) -> None:
        """See `Drafter.read_prompt`."""

    def observe(self, outcome: RoundResult) -> None:
        """See `Drafter.observe`."""

    def to_observe(self, outcome: RoundResult) -> Mapping[str, Tensor]:
        """See `Drafter.to_observe`."""
        return {}

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        error = finite.failure(self.model, self.runs, cfg=self.context.request.cfg)
        return error or ModelError(f"the draft model {self.model.name} gives logits that are not finite")


class ModelDrafter(Drafter):
    """A drafter that is a second model, which its parameter `name` names."""

    name: str | None
    role: ClassVar[str] = "the draft model"

    def check(self, sampler: SpeculativeSampler) -> None:
        if not self.name:
            kind = self.registered[0]
            raise SpecError(
                f"{kind}: name is missing; it names {self.role}",
                hint=f"write {kind}:name=... with an embedded name, a folder or a hub id of the target's vocabulary",
            )

    @property
    def needed_model(self) -> str | None:
        return self.name

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        return parameter_ratio(target, draft_model)


class StateDrafter(Drafter):
    """A drafter of up to `k` tokens whose state, a `DraftState` with `draft`, does the work of a round."""

    k: int

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: Any) -> None:
        state.read_prompt(rows, hidden)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        draft: Draft = state.draft(self.k, remaining, uniforms)
        return draft

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        state.observe(outcome)

    def to_observe(self, outcome: RoundResult, state: Any) -> Mapping[str, Tensor]:
        read: Mapping[str, Tensor] = state.to_observe(outcome)
        return read


class DraftModelState(DraftState, DraftModel):
    """One drafting model during one request.

    In a round, the nodes that a row feeds take the slots from its last committed token on, in the order in which they
    are fed; `slot` is the slot of each node. Between rounds the slots below `cached` contain committed tokens.
    """

    per_row: ClassVar[tuple[str, ...]] = ("cached", "reuse", "own_cache")
    base: np.ndarray  # [B] on the host: the slot of node 0, which is also its position
    start: Tensor  # [B] `base` on the device
    slots_used: Tensor  # [B] slots used in this round
    slot: Tensor  # [B, T] the slot of each node after `start`, -1 if it was not fed
    fed: np.ndarray  # [B] bool, on the host: the rows whose node 0 was fed
    highest: Tensor  # [] the sum of this round's highest logits: see `models.finite`
    alone: bool  # one row drafts alone: its next node's slot after `start` is `slots_used`, on the host `used`
    used: int
    budgeted: np.ndarray | None = None  # [B] bool, on the host: the rows that draft in this round
    visible_slots: Tensor  # [B, R, R] bool: the slots after `start` that each such slot attends to; unused on chains
    lag: ClassVar[int] = 0  # a token at position p is in slot p - lag

    def __init__(
        self,
        context: DecodeContext,
        model: LanguageModel,
        cache: KVCache,
        *,
        layers: slice | None = None,
        skip: frozenset[tuple[int, str]] = frozenset(),
        own: bool = False,
        parallel: int = 1,
    ) -> None:
        """`own`: the cache is not the target's, so the committed tokens have to be fed, too.

        `parallel`: how many layers drafted tokens go through at once (see `models.layers.layer_groups`). Committed
        tokens do not, and drafted tokens are fed again once they are committed, so that past K/V are always exact.
        """
        finite.demand_head(model)
        self.context, self.model, self.cache = context, model, cache
        self.layers, self.skip, self.own, self.parallel = layers, skip, own, parallel
        self.own_cache = CacheRows(getattr(model, "decoder", None), cache) if own else None  # the loop has the target's
        self.cached = np.zeros_like(context.text.length)
        self.calls = 0  # forwards of this round
        self.runs: list[finite.Run] = []  # plans and caches of these forwards
        self.drafting = False
        self.reuse: DraftReuse | None = None
        shape = context.sampler.shape
        self.unprocessed = shape is not None and Trait.UNPROCESSED_SCORES in shape.provides

    def draft(self, most: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        """Drafts by the spec's shape and length, at most `most` tokens and `remaining` [B] deep."""
        context, budget = self.context, depth_budget(self.context, most, remaining)
        self.calls, self.drafting, self.budgeted = 0, bool((budget > 0).any()), budget > 0
        # The nodes of a single row are in consecutive slots known to the host, so forwards need no slot tensor.
        self.alone = len(remaining) == 1 and context.text.device.type == "cpu" and not context.request.conditions
        self.runs.clear()
        if not self.drafting:
            return Draft.none(context.text)
        self._begin()
        shape = context.sampler.shape
        assert shape is not None, "drafters with a model have a shape"
        draft = shape.grow(self, context, budget, uniforms, context.state(shape))
        return replace(draft, forwards=self.calls, highest=self.highest)

    def reuse_prefixes(self) -> None:
        """Copies stored K/V of each row's prompt; for models whose K/V depend only on their tokens."""
        text = self.context.text
        self.reuse = DraftReuse(self.context.model, self.model, self.cache, len(text))
        self.cached = self.reuse.begin([text.row(at) for at in range(len(text))])

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        return self._processed(self._fitted(self._raw(draft, nodes)), draft, nodes)

    def forward_subset(self, draft: Draft, nodes: Tensor) -> SubsetLogits:
        subset = self.model.subset
        if subset is None or (not self.unprocessed and self.context.reads_ids()):
            return SubsetLogits(self.forward(draft, nodes))
        raw = self._raw(draft, nodes, subset=True)
        return SubsetLogits(self._processed(raw, draft, nodes), subset.ids)

    def _raw(self, draft: Draft, nodes: Tensor, *, subset: bool = False) -> Tensor:
        """Logits after `nodes` [B, K]: [B, K, V], or [B, K, N] over the ids that the model drafts."""
        first = self.own and not self.slot.shape[1]
        raw = self._catch_up(nodes, subset=subset) if first else self._feed(draft, nodes).logits(subset=subset)
        highest = raw.amax() if self.alone else torch.where(nodes >= 0, raw.amax(-1), 0).sum()
        self.highest = self.highest + highest
        return raw

    def _processed(self, logits: Tensor, draft: Draft, nodes: Tensor) -> Tensor:
        return logits if self.unprocessed else self.context.distribution(logits, draft, nodes)

    def prune(self, nodes: Tensor) -> None:
        known = nodes < self.slot.shape[1]
        self.slot = torch.where(known, self.slot.gather(1, nodes.clamp(max=self.slot.shape[1] - 1)), -1)

    def observe(self, outcome: RoundResult) -> None:
        """Moves the K/V of accepted nodes directly after the committed ones, if the model has its own cache."""
        if not self.drafting:
            return
        slot, lead = self._leading(outcome.draft, outcome.verdict)
        if outcome.draft.parents is not None:
            start, order = self.start[:, None], torch.arange(slot.shape[1], device=slot.device)
            self.cache.move(start + slot, torch.where((lead > 0) & (slot != order), start + order, -1))
        fed = outcome.on_host["fed"] if "fed" in outcome.on_host else download(lead.sum(1))
        self.cached = np.where(fed > 0, self.base + fed, self.cached)
        if self.reuse is not None and self.reuse.prefixes is not None:
            text = self.context.text
            rows = [text.row(at) for at in range(len(text))]
            self.reuse.store(rows, np.where(self.cached >= text.prompt, text.prompt, 0))

    def to_observe(self, outcome: RoundResult) -> Mapping[str, Tensor]:
        return {"fed": self._leading(outcome.draft, outcome.verdict)[1].sum(1)} if self.drafting else {}

    def _leading(self, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
        """Per node of the path: its slot after `start`, -1 if it was not fed; and 1 up to the first -1, then 0."""
        path = verdict.path if self.parallel == 1 else verdict.path[:, :1]  # only node 0 has exact K/V
        slot = self._slots(draft.width).gather(1, path)
        order = torch.arange(path.shape[1], device=path.device)
        return slot, ((slot >= 0) & (order <= verdict.count[:, None])).long().cumprod(1)

    def _begin(self) -> None:
        text = self.context.text
        self.base = text.length - 1 - self.lag
        self.fed = np.zeros(len(text), dtype=bool)
        self.start = upload(self.base, text.device)
        self.slots_used, self.used = torch.zeros_like(self.start), 0
        self.highest = torch.zeros((), device=text.device)
        self.slot = self.start.new_zeros(len(text), 0)
        self.visible_slots = torch.ones(len(text), 1, 1, dtype=torch.bool, device=text.device)

    def _feed(self, draft: Draft, nodes: Tensor) -> Hidden:
        """Runs one forward of `nodes` [B, K]."""
        self.alone = self.alone and bool((nodes >= 0).all())
        if self.alone:
            return self._run(self._plan_alone(draft, nodes))
        real, at = nodes >= 0, nodes.clamp(min=0)
        order = torch.arange(nodes.shape[1], device=nodes.device)
        slot = self.slots_used[:, None] + order
        start = self.start[:, None]
        chain = draft.parents is None
        self.slots_used = self.slots_used + real.sum(1)
        # On a chain nodes are fed one by one, the newest each time.
        same = chain and bool((draft.sizes == draft.width).all() and (self.base == self.base[0]).all())
        # On a GPU, reading `real` now would synchronize.
        every = same and (bool(draft.grows.all()) if draft.grows is not None else _all_on_host(real))
        last = int(self.base[0]) + draft.width if every else None
        visible = Visible.causal() if chain else self._attention_pattern(draft.parent.gather(1, at), slot, real)
        plan = Plan(
            tokens=self._tokens(draft.tokens.gather(1, at)),
            positions=torch.where(real, start + draft.depth.gather(1, at), -1),
            slots=torch.where(real, start + slot, -1),
            visible=visible,
            lengths=self.start + self.slots_used,
            want=order.expand_as(nodes),
            soft=self._drafted_soft(draft, at),
            layers=self.layers,
            skip=self.skip,
            parallel=self.parallel,
            uniform=last,
            span=None if last is None else (last - 1, last),
        )
        known = pad(self.slot, (0, draft.width + 1 - self.slot.shape[1]), value=-1)
        self.slot = known.scatter(1, torch.where(real, nodes, draft.width), slot)[:, :-1]
        return self._run(plan)

    def _plan_alone(self, draft: Draft, nodes: Tensor) -> Plan:
        """The plan for a single row, computed on the host; its `nodes` [1, K] take the next slots."""
        at, start, used = nodes.numpy()[0], int(self.base[0]), self.used
        self.used = used + len(at)
        self.slots_used = self.slots_used + len(at)
        order = np.arange(used, self.used)
        slots = torch.from_numpy(start + order)[None]
        positions, visible, chain = slots, Visible.causal(), draft.parents is None
        if not chain:
            grown = np.zeros((self.used, self.used), dtype=bool)
            known = self.visible_slots[0].numpy()
            grown[:used, : len(known)] = known
            above = self.slot.numpy()[0, draft.parent.numpy()[0, at].clip(0)]
            grown[used:, : len(known)] = known[above.clip(0)]  # each node sees its parent's slots
            grown[order, order] = True  # and its own
            self.visible_slots = torch.from_numpy(grown)[None]
            positions = torch.from_numpy(start + draft.depth.numpy()[0, at])[None]
            visible = Visible.mask(self.visible_slots[:, used:], start)
        known_slot = np.full((1, max(draft.width, self.slot.shape[1])), -1)
        known_slot[0, : self.slot.shape[1]] = self.slot.numpy()[0]
        soft = self._drafted_soft(draft, nodes)
        known_slot[0, at] = order
        self.slot = torch.from_numpy(known_slot)
        return Plan(
            tokens=self._tokens(torch.from_numpy(draft.tokens.numpy()[:, at])),
            positions=positions,
            slots=slots,
            visible=visible,
            lengths=self.start + self.slots_used,
            want=torch.from_numpy(order - used)[None],
            soft=soft,
            layers=self.layers,
            skip=self.skip,
            parallel=self.parallel,
            uniform=start + self.used,
            span=(start + used, start + self.used) if chain else None,
            stored=(start + used, start + self.used),
        )

    def _committed_tokens(self, rows: Tensor, where: Tensor) -> Tensor:
        """[b, W]: the committed tokens of `rows` [b] in slots `where` [b, W], which may be after the last one."""
        tokens = self.context.text.tokens
        return tokens[rows].gather(1, (where + self.lag).clamp(max=tokens.shape[1] - 1))

    def _committed_soft(self, rows: Tensor, width: int) -> Tensor | None:
        """[b, width, E]: `Plan.soft` for the tokens of `rows` [b] from `cached` on."""
        return None

    def _drafted_soft(self, draft: Draft, nodes: Tensor) -> Tensor | None:
        """[B, K, E]: `Plan.soft` for `nodes` [B, K]."""
        return None

    def _run(self, plan: Plan) -> Hidden:
        self.calls += 1
        self.runs.append((plan, self.cache))
        return self.model.run(plan, self.cache)

    def _catch_up(self, nodes: Tensor, *, subset: bool) -> Tensor:
        """Feeds committed tokens that have no K/V; returns logits [B, 1, V or N] after node 0 of the rows that draft.

        In the first round these are the whole text, later the accepted tokens that were never fed.
        """
        text, real = self.context.text, nodes[:, 0] >= 0
        # A shape begins with the rows that have a budget: on a GPU, this saves reading the tensor.
        self.fed = download(real) if self.budgeted is None or real.device.type == "cpu" else self.budgeted.copy()
        live = np.flatnonzero(self.fed)
        missing = self.base[live] + 1 - self.cached[live]
        groups = catch_up_groups(missing)
        raw: Tensor | None = None
        for group in groups:
            count = upload(missing[group], text.device)[:, None]
            rows = upload(live[group], text.device)
            first = upload(self.cached[live[group]], text.device)[:, None]
            order = torch.arange(int(missing[group].max()), device=text.device)
            where = first + order
            slots = torch.where(order < count, where, -1)
            plan = Plan(
                tokens=self._tokens(self._committed_tokens(rows, where)),
                positions=slots,
                slots=slots,
                visible=Visible.causal(),
                lengths=self.start[rows] + 1,
                want=count - 1,
                soft=self._committed_soft(rows, where.shape[1]),
                rows=None if len(group) == len(text) else rows,
                uniform=int(self.base[0]) + 1 if self.alone else None,
                span=(int(self.cached[0]), int(self.base[0]) + 1) if self.alone else None,
                narrow=True,
            )
            logits = self._run(plan).logits(subset=subset)
            if len(group) == len(text):
                raw = logits
                break
            if raw is None:
                raw = logits.new_zeros(len(text), *logits.shape[1:])
            raw[rows] = logits
        self.calls -= len(groups) - 1  # each row took part in one
        assert raw is not None
        self.slots_used, self.used = real.long(), 1
        self.slot = torch.where(real, 0, -1)[:, None]
        return raw

    def _attention_pattern(self, parents: Tensor, slot: Tensor, real: Tensor) -> Visible:
        """Lets each node attend to committed slots, its parent's slots and its own; `parents` are node indices."""
        old, new = self.visible_slots.shape[1], self.visible_slots.shape[1] + slot.shape[1]
        above = self.slot.gather(1, parents.clamp(min=0)).clamp(min=0)
        own = pad(self.visible_slots.gather(1, above[..., None].expand(-1, -1, old)), (0, new - old))
        own = own.scatter(2, slot[..., None], True)
        grown = pad(self.visible_slots, (0, new - old, 0, new + 1 - old))
        target = torch.where(real, slot, new)
        self.visible_slots = grown.scatter(1, target[..., None].expand_as(own), own)[:, :-1]
        rank = torch.arange(int(self.base.max()) + new, device=slot.device) - self.start[:, None]
        inside = (rank >= 0) & (rank < new)
        drafted = own.gather(2, rank.clamp(0, new - 1)[:, None].expand(-1, own.shape[1], -1))
        return Visible.mask((rank < 0)[:, None] | (drafted & inside[:, None]))

    def _feed_rest(self, draft: Draft) -> tuple[Tensor, Tensor]:
        """Feeds the nodes of `draft` that were not fed, and moves all nodes' K/V to the slots of the verify forward.

        For drafters on the target's cache. Returns [B, T] bool, which nodes are real, and [B, T] int64, the slot after
        `start` that each was fed in.
        """
        order = torch.arange(draft.width, device=self.start.device)
        real = order < upload(draft.sizes, order.device)[:, None]
        unfed = real & (self._slots(draft.width) < 0)
        nodes = first_columns(unfed, draft.width if draft.parents is not None else 1, -1)  # in a chain, the last node
        if nodes.shape[1]:
            self._feed(draft, nodes)
        start, slot = self.start[:, None], self._slots(draft.width).clamp(min=0)
        if draft.parents is not None:
            self.cache.move(start + slot, torch.where(real & (slot != order), start + order, -1))
        return real, slot

    def _slots(self, width: int) -> Tensor:
        """[B, width]: the slot of each node after `start`, -1 if it was not fed."""
        return pad(self.slot, (0, max(0, width - self.slot.shape[1])), value=-1)

    def _tokens(self, tokens: Tensor) -> Tensor:
        """Ids within the model's embedding table, which may be shorter than the target's due to padding."""
        own = self.model.vocab_size
        return tokens if own >= self.context.model.vocab_size else tokens.clamp(max=own - 1)

    def _fitted(self, raw: Tensor) -> Tensor:
        """Logits over the target's ids; ids that only one of the two models has are padding."""
        short = self.context.model.vocab_size - raw.shape[-1]
        return raw if not short else pad(raw, (0, short), value=-torch.inf)


def _all_on_host(values: Tensor) -> bool:
    """Whether all `values` are on the host and True; values on a device are not read, since the host would wait."""
    return values.device.type == "cpu" and bool(values.all())


def depth_budget(context: DecodeContext, most: int, remaining: np.ndarray) -> np.ndarray:
    """[B]: the tokens to draft: at most `most`, `remaining` [B] and the length controller's budget."""
    length = context.sampler.length
    limit = np.full_like(remaining, most) if length is None else length.budget(most, context, context.state(length))
    budget: np.ndarray = np.minimum(remaining, limit.clip(0, most))
    return budget


def check_causal(drafter: LanguageModel) -> None:
    """Raises ModelError unless `drafter` predicts from left to right."""
    if drafter.decoding_config.attention != "causal":
        raise ModelError(
            f"{drafter.name} cannot draft: it is no autoregressive model", "use an autoregressive draft model"
        )


def check_texts(way: str, drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` can continue the text of `target`, mapped in this `way`."""
    check_causal(drafter)
    for model in (drafter, target):
        if model.tokenizer is None:
            raise ModelError(f"map={way} needs tokenizers, and {model.name} has no tokenizer", "use map=ids")


def check_pair(drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` predicts the same tokens as `target`, left to right."""
    check_causal(drafter)
    check_tokens(drafter, target)


def check_tokens(drafter: LanguageModel, target: LanguageModel) -> None:
    """Raises ModelError unless `drafter` has the same tokens as `target`."""
    ours, theirs = (model.tokenizer and model.tokenizer.get_vocab() for model in (target, drafter))
    same = ours == theirs if ours and theirs else target.vocab_size == drafter.vocab_size
    if not same:
        raise ModelError(
            f"{drafter.name} (vocabulary {drafter.vocab_size}) and {target.name} (vocabulary {target.vocab_size}) do "
            "not share their tokens",
            "draft with a checkpoint of the same tokenizer, or with map=text",
        )


def check_device(method: str, name: str) -> None:
    """Raises SpecError unless torch knows the device `name`."""
    try:
        torch.device(name)
    except RuntimeError:
        raise SpecError(
            f"{method}: device={name!r} is no device of torch",
            hint='write device=cpu, or device="cuda:1" with quotes because of the colon',
        ) from None
