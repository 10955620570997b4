"""A drafting model as shapes hear it: nodes go in, laws come out, over a cache of its own or over the target's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError
from pardec.models.hidden import Hidden
from pardec.models.images.conditioned import put_rows
from pardec.models.kv_cache import KVCache
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from .contracts import DecodeContext, Draft, Outcome, Uniforms
from .forward import grouped

_SHORT = 8  # so few tokens to catch up with are fed in one forward, whatever the padding: a second one costs more


class DraftModelState:
    """One drafting model over one request; finished rows leave it (`keep`).

    In a round, the nodes that a row feeds take the slots from its last committed token on, in the order in which they
    are heard; where each went is `place`. Between rounds the slots below `held` hold committed tokens.
    """

    base: np.ndarray  # [B] the slot and the position of node 0, on the host
    start: Tensor  # [B] the same
    used: Tensor  # [B] slots taken in this round
    place: Tensor  # [B, T] the slot of each node behind `start`, -1 where it was not heard
    highest: Tensor  # [] of the logits that it gave in this round, summed: see `models.finite`
    sees: Tensor  # [B, R, R] bool: which slots behind `start` each of them sees; meaningless on a chain

    def __init__(
        self,
        context: DecodeContext,
        model: LanguageModel,
        cache: KVCache,
        *,
        layers: slice | None = None,
        skip: frozenset[tuple[int, str]] = frozenset(),
        own: bool = False,
    ) -> None:
        """`own`: the cache is not the target's, so the committed tokens have to be fed to it, too."""
        finite.demand_head(model)
        self.context, self.model, self.cache = context, model, cache
        self.layers, self.skip, self.own = layers, skip, own
        self.held = np.zeros_like(context.text.length)
        self.calls = 0  # forwards of this round
        self.runs: list[finite.Run] = []  # the same
        self.drafting = False

    def draft(self, most: int, room: np.ndarray, uniforms: Uniforms) -> Draft:
        """A draft of the spec's shape and length, at most `most` tokens and `room` [B] deep."""
        context, length = self.context, self.context.sampler.length
        wanted = np.full_like(room, most)
        if length is not None:
            wanted = length.budget(most, context, context.state(length))
        budget = np.minimum(room, wanted.clip(0, most))
        self.calls, self.drafting = 0, bool((budget > 0).any())
        self.runs.clear()
        if not self.drafting:
            return Draft.none(context.text)
        self._begin()
        shape = context.sampler.shape
        assert shape is not None, "who drafts with a model is `shaped`"
        draft = shape.grow(self, context, budget, uniforms, context.state(shape))
        return replace(draft, forwards=self.calls, highest=self.highest)

    def failure(self) -> PardecError:
        """Why the logits that it drafted by in this round are not finite."""
        found = finite.failure(self.model, self.runs, cfg=self.context.request.cfg)
        return found or ModelError(f"{self.model.name}, which drafts, gives logits that are not finite")

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows; the loop tells the target's cache itself."""
        self.held = self.held[rows]
        if self.own and len(rows):
            self.cache.keep(torch.from_numpy(rows))

    def put(self, where: np.ndarray, other: DraftModelState) -> None:
        """The rows of `other` in place of the live rows at `where`; the loop tells the target's cache itself."""
        self.held = self.held.copy()
        self.held[where] = other.held
        if self.own:
            put_rows(self.model.decoder, self.cache, torch.from_numpy(where), other.model.decoder, other.cache)

    # --- the voice ---

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        first = self.own and not self.place.shape[1]
        raw = self._catch_up(nodes) if first else self._feed(draft, nodes).logits()
        self.highest = self.highest + torch.where(nodes >= 0, raw.amax(-1), 0).sum()
        return self.context.distribution(self._fitted(raw), draft, nodes)

    def prune(self, nodes: Tensor) -> None:
        known = nodes < self.place.shape[1]
        self.place = torch.where(known, self.place.gather(1, nodes.clamp(max=self.place.shape[1] - 1)), -1)

    def settle(self, outcome: Outcome) -> None:
        """Brings the K/V of what was accepted together behind the committed ones, in a cache of its own."""
        if not self.drafting:
            return
        path, count = outcome.verdict.path, outcome.verdict.count
        place = self._place(outcome.draft.width).gather(1, path)
        order = torch.arange(path.shape[1], device=path.device)
        lead = ((place >= 0) & (order <= count[:, None])).long().cumprod(1)
        if outcome.draft.parents is not None:
            start = self.start[:, None]
            self.cache.move(start + place, torch.where((lead > 0) & (place != order), start + order, -1))
        fed_count = lead.sum(1).cpu().numpy()
        self.held = np.where(fed_count > 0, self.base + fed_count, self.held)

    # --- its forwards ---

    def _begin(self) -> None:
        text = self.context.text
        self.base = text.length - 1
        self.start = torch.from_numpy(self.base).to(text.device)
        self.used = torch.zeros_like(self.start)
        self.highest = torch.zeros((), device=text.device)
        self.place = self.start.new_zeros(len(text), 0)
        self.sees = torch.ones(len(text), 1, 1, dtype=torch.bool, device=text.device)

    def _feed(self, draft: Draft, nodes: Tensor) -> Hidden:
        """One forward of `nodes` [B, K]."""
        real, at = nodes >= 0, nodes.clamp(min=0)
        order = torch.arange(nodes.shape[1], device=nodes.device)
        place = self.used[:, None] + order
        start = self.start[:, None]
        chain = draft.parents is None
        self.used = self.used + real.sum(1)
        # On a chain nodes are heard one by one, the newest each time.
        same = chain and bool((draft.sizes == draft.width).all() and (self.base == self.base[0]).all())
        last = int(self.base[0]) + draft.width if same and bool(real.all()) else None
        visible = Visible.causal() if chain else self._attention_pattern(draft.parent.gather(1, at), place, real)
        plan = Plan(
            tokens=self._tokens(draft.tokens.gather(1, at)),
            positions=torch.where(real, start + draft.depth.gather(1, at), -1),
            slots=torch.where(real, start + place, -1),
            visible=visible,
            lengths=self.start + self.used,
            want=order.expand_as(nodes),
            layers=self.layers,
            skip=self.skip,
            uniform=last,
            span=None if last is None else (last - 1, last),
        )
        known = pad(self.place, (0, draft.width + 1 - self.place.shape[1]), value=-1)
        self.place = known.scatter(1, torch.where(real, nodes, draft.width), place)[:, :-1]
        return self._run(plan)

    def _run(self, plan: Plan) -> Hidden:
        self.calls += 1
        self.runs.append((plan, self.cache))
        return self.model.run(plan, self.cache)

    def _catch_up(self, nodes: Tensor) -> Tensor:
        """Feeds node 0 of the rows that draft, and before it the committed tokens whose K/V are missing: the whole text
        at first, and what was accepted but never heard later on. [B, 1, V] logits behind node 0."""
        text, real = self.context.text, nodes[:, 0] >= 0
        live = np.flatnonzero(real.cpu().numpy())
        missing = self.base[live] + 1 - self.held[live]
        groups = grouped(missing) if missing.max() > _SHORT else [np.arange(len(live))]
        raw: Tensor | None = None
        for group in groups:
            count = torch.from_numpy(missing[group]).to(text.device)[:, None]
            rows = torch.from_numpy(live[group]).to(text.device)
            first = torch.from_numpy(self.held[live[group]]).to(text.device)[:, None]
            order = torch.arange(int(missing[group].max()), device=text.device)
            where = first + order
            slots = torch.where(order < count, where, -1)
            tokens = text.tokens[rows].gather(1, where.clamp(max=text.tokens.shape[1] - 1))
            plan = Plan(
                tokens=self._tokens(tokens),
                positions=slots,
                slots=slots,
                visible=Visible.causal(),
                lengths=self.start[rows] + 1,
                want=count - 1,
                rows=None if len(group) == len(text) else rows,
                narrow=True,
            )
            made = self._run(plan).logits()
            if raw is None:
                raw = made.new_zeros(len(text), *made.shape[1:])
            raw[rows] = made
        self.calls -= len(groups) - 1  # each row took part in one
        assert raw is not None
        self.used = real.long()
        self.place = torch.where(real, 0, -1)[:, None]
        return raw

    def _attention_pattern(self, parents: Tensor, place: Tensor, real: Tensor) -> Visible:
        """Each node sees the committed slots, those that its parent sees, and its own; `parents` by node."""
        old, new = self.sees.shape[1], self.sees.shape[1] + place.shape[1]
        above = self.place.gather(1, parents.clamp(min=0)).clamp(min=0)
        own = pad(self.sees.gather(1, above[..., None].expand(-1, -1, old)), (0, new - old))
        own = own.scatter(2, place[..., None], True)
        grown = pad(self.sees, (0, new - old, 0, new + 1 - old))
        spot = torch.where(real, place, new)
        self.sees = grown.scatter(1, spot[..., None].expand_as(own), own)[:, :-1]
        rank = torch.arange(int(self.base.max()) + new, device=place.device) - self.start[:, None]
        inside = (rank >= 0) & (rank < new)
        drafted = own.gather(2, rank.clamp(0, new - 1)[:, None].expand(-1, own.shape[1], -1))
        return Visible.mask((rank < 0)[:, None] | (drafted & inside[:, None]))

    def _place(self, width: int) -> Tensor:
        """[B, width] the slot of each node behind `start`, -1 where it was not heard."""
        return pad(self.place, (0, max(0, width - self.place.shape[1])), value=-1)

    def _tokens(self, tokens: Tensor) -> Tensor:
        """Ids that the model can look up: a published table may be longer than that of another of its family."""
        return tokens if self.model.vocab_size >= self.context.model.vocab_size else tokens.clamp(max=self._top)

    def _fitted(self, raw: Tensor) -> Tensor:
        """Logits over the target's ids: those that only one of the two tables has are padding."""
        short = self.context.model.vocab_size - raw.shape[-1]
        return raw if not short else pad(raw, (0, short), value=-torch.inf)

    @property
    def _top(self) -> int:
        return self.model.vocab_size - 1
