"""Forwards of the verify loop with more than logits: states, probe nodes, shared and stored prompts.

They also yield states of the target or attention queries, run probe nodes or the layers that a drafter has not run,
feed the prompt that rows have in common once, or only what follows a stored prefix.

Hydragen: High-Throughput LLM Inference with Shared Prefixes, https://arxiv.org/abs/2402.05099
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from pardec.models.caches.kv_cache import KVCache
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan, TargetStates

from ..prefix_reuse import PrefixReuse
from ..request import Request
from ..traits import Trait
from .compatibility import nested
from .contracts import Draft, SpeculativeSampler, Verdict
from .forward import FedNodes, VerifyForward, grouped
from .probe_nodes import QueryVectors, extended, inputs_of
from .sequences import Sequences

# The least number of K/V slots saved, (rows - 1) * tokens, for which a prompt is shared. On a CPU a step of two rows
# takes up to a third longer with a tiny model, since each layer attends twice, and one of 8 rows at 128 tokens a tenth
# longer; sharing a shorter prompt does not make up for that within an answer (benchmarks/shared_prefix.md).
LEAST_SLOTS = 768


def shared_length(model: LanguageModel, request: Request, text: Sequences, *, begins: bool) -> int:
    """The number of tokens to share between rows, 0 for none: the whole prompt or, if `begins`, a common beginning."""
    least, rows = int(text.length.min()), len(text)
    alike = (text.host[:, :least] == text.host[0, :least]).all(0)
    length = least if alike.all() else int(alike.argmin())
    if length < text.length.max():  # each row has a token that is not shared, and may reuse a stored prefix
        length = min(length, least - 1) if begins and model.prefix_cache is None else 0
    worth = rows > 1 and length > 0 and (rows - 1) * length >= LEAST_SLOTS
    if not (request.share_prompt and worth and length < text.limit.max()):
        return 0
    if model.device.type != "cpu":  # not measured on other devices
        return 0
    return length if model.shared_prefix_off_reason is None else 0


def of_all_rows(hidden: Hidden, count: int) -> Hidden:
    """The forward of one row repeated for `count` equal rows, as views; only logits are computed again."""
    plan = hidden.plan
    wide: dict[str, Any] = {}
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if isinstance(value, Tensor):
            wide[field.name] = value.expand(count, *value.shape[1:])
    taps = {layer: states.expand(count, -1, -1) for layer, states in hidden.taps.items()}
    queries = tuple(each.expand(count, -1, -1, -1) for each in hidden.queries)
    return replace(
        hidden, plan=replace(plan, **wide), states=hidden.states.expand(count, -1, -1), taps=taps, queries=queries
    )


def rows_fed(length: np.ndarray, shared: int, reused: int) -> tuple[np.ndarray, np.ndarray]:
    """The first position and the number of positions, both [B], that the prompts' forwards fed for each row.

    The first row fed the shared tokens, after those that it `reused`.
    """
    base = np.full_like(length, shared)
    base[0] = reused
    return base, length - base


def forward_of(model: LanguageModel, text: Sequences, sampler: SpeculativeSampler, request: Request) -> VerifyForward:
    """Makes the forward of a request: the plain one if stages need only logits and no prompt is shared or stored."""
    drafter, stage = sampler.draft, sampler.cache
    nodes = sampler.width(model)
    nodes += drafter.most_queries(nodes, request)
    states = drafter.target_states(request) or drafter.target_taps(model)
    judged = sampler.accept.target_states(request)
    queries = max(each.last_queries for each in sampler.stages)
    shares = stage is None or Trait.SHARES_PROMPTS in stage.provides
    # A drafter that reads logits of the whole prompt needs them in one forward.
    begins = states is not None or Trait.READS_PROMPT not in drafter.provides
    shared = shared_length(model, request, text, begins=begins) if shares else 0
    size, scratch = (len(text), int(text.limit.max())), nodes - 1
    plain = any(Trait.PLAIN_DECODER in each.requires for each in (*sampler.stages, *nested(drafter)))
    cache: KVCache = (
        model.new_cache(*size, scratch=scratch, shared=shared, captured=not plain)
        if stage is None
        else stage.new_cache(model, *size, scratch=scratch, shared=shared)
    )
    reuse = PrefixReuse(model, cache if shares else None, len(text))
    wants = states is not None or judged is not None or queries > 0 or Trait.DRAFTS_DURING_VERIFY in drafter.provides
    if not wants and cache.shared is None and reuse.prefixes is None:
        return VerifyForward(model, text, cache)
    return ExtendedForward(model, text, cache, reuse, states=states, judged=judged, queries=queries)


class ExtendedForward(VerifyForward):
    """The forwards of a request whose stages need more than logits, or whose prompts are shared or stored."""

    per_row = ("reuse",)
    reuse: PrefixReuse

    def __init__(
        self,
        model: LanguageModel,
        text: Sequences,
        cache: KVCache,
        reuse: PrefixReuse,
        *,
        states: TargetStates | None = None,
        judged: TargetStates | None = None,
        queries: int = 0,
    ) -> None:
        """`states` are for the drafter, `judged` for the acceptance; `queries` is the most `Stage.last_queries`."""
        super().__init__(model, text, cache, judged if states is None else states | judged)
        self.states, self.judged, self.reuse = states, judged, reuse
        self._queries = QueryVectors(queries)
        self._fresh: list[tuple[np.ndarray, Tensor | None]] = []  # rows of a prompt's forward, and their `states`

    # --- prompts ---

    def prompt(self, *, narrow: bool) -> Iterator[tuple[np.ndarray, Hidden, Hidden]]:
        """Like `VerifyForward.prompt`; drafters read the `states` at all tokens, even if their K/V are copied.

        A drafter without `states` reads logits, which are not stored: then no prefix is copied. Of rows that begin
        alike, the first goes ahead; where all of them share their prompt, it goes alone, for all.
        """
        text, reuse = self.text, self.reuse
        wanted = None if narrow else self.states
        how: dict[str, Any] = {
            "narrow": narrow or (wanted is not None and wanted.below(self.model.layers)),
            "taps": not narrow,
        }
        self.runs.clear()
        texts = [text.row(at) for at in range(len(text))]
        most = text.length - 1 if narrow or wanted is not None else np.zeros_like(text.length)
        if self.cache.shared is not None:
            yield from self._shared_prompts(int(most[0]), wanted, how)
            return
        later = reuse.followers(texts, most, wanted)
        for part in (np.flatnonzero(~later), np.flatnonzero(later)):
            for at in part.tolist():
                reuse.begin(at, texts[at], int(most[at]), wanted)
            base = reuse.length[part]
            for group in grouped(text.length[part] - base) if len(part) else ():
                rows = part[group]
                hidden = whole = self._run(self._prompts(rows, base[group]), rows, whole=False, **how)
                self._queries.add(rows, hidden)
                if wanted is not None and base[group].any():
                    whole = self._with_prefixes(hidden, rows, wanted)
                if reuse.prefixes is not None:
                    self._fresh.append((rows, None if wanted is None else wanted.of(whole)))
                yield rows, hidden, whole
                if later.any() and bool(hidden.states.isfinite().all()):  # later rows reuse these
                    self.store_prompts()
        self.fed.append(FedNodes(text.rows, reuse.length.copy(), text.length - reuse.length))

    def _shared_prompts(
        self, most: int, wanted: TargetStates | None, how: dict[str, Any]
    ) -> Iterator[tuple[np.ndarray, Hidden, Hidden]]:
        """`prompt` for rows that share tokens: the first row feeds the shared ones, then each row feeds the rest."""
        text, reuse, shared = self.text, self.reuse, self.cache.offset
        for at in range(len(text)):
            reuse.begin(at, text.row(at), min(most, shared - 1) if at == 0 else 0, wanted)
        first, base = np.arange(1), reuse.length[:1].copy()
        beginning = self._run(self._prompts(first, base, shared), first, cache=self.cache.shared, whole=False, **how)
        states = None if wanted is None else wanted.of(beginning)[0]
        if states is not None and wanted is not None and base.any():
            states = torch.cat((reuse.states(0, wanted).to(states), states))
        self.fed.append(FedNodes(text.rows, *rows_fed(text.length, shared, int(base[0]))))
        whole_prompt = bool((text.length == shared).all())
        for rows in [np.arange(len(text))] if whole_prompt else grouped(text.length - shared):
            if whole_prompt:
                hidden = of_all_rows(beginning, len(text))
            else:
                hidden = self._run(self._prompts(rows, np.full_like(rows, shared)), rows, whole=False, **how)
            self._queries.add(rows, hidden)
            whole = hidden if states is None or wanted is None else self._after(states, hidden, rows, wanted)
            if reuse.prefixes is not None:
                self._fresh.append((rows, None if wanted is None else wanted.of(whole)))
            yield rows, hidden, whole

    def _after(self, beginning: Tensor, hidden: Hidden, rows: np.ndarray, wanted: TargetStates) -> Hidden:
        """The states at all tokens of the prompts: the shared `beginning` [P, S], then each row's own."""
        sizes = (self.text.length[rows] - len(beginning)).tolist()
        if any(sizes):
            parts = zip(wanted.of(hidden), sizes, strict=True)
            states = pad_sequence([torch.cat((beginning, own[:size])) for own, size in parts], batch_first=True)
        else:
            states = beginning.expand(len(rows), -1, -1)
        plan = self._plan(self._prompts(rows, np.zeros_like(rows)), rows, whole=False)
        return wanted.hidden(plan, states)

    def store_prompts(self) -> None:
        """Stores the prompts of the last forwards in the prefix cache; called once logits are known to be finite."""
        for rows, states in self._fresh:
            for index, at in enumerate(rows.tolist()):
                own = None if states is None or self.states is None else (self.states, states[index])
                self.reuse.store(at, self.text.row(at)[: self.text.prompt[at]], own)
        self._fresh.clear()

    def _with_prefixes(self, hidden: Hidden, rows: np.ndarray, wanted: TargetStates) -> Hidden:
        """The states at all tokens of the prompts, stored prefixes included."""
        fresh, base = wanted.of(hidden), self.reuse.length[rows]
        parts = []
        for own, at, first in zip(fresh, rows.tolist(), base.tolist(), strict=True):
            rest = own[: int(self.text.length[at]) - first]
            parts.append(torch.cat((self.reuse.states(at, wanted).to(rest), rest)) if first else rest)
        plan = self._plan(self._prompts(rows, np.zeros_like(rows)), rows, whole=False)
        return wanted.hidden(plan, pad_sequence(parts, batch_first=True))

    # --- drafts ---

    def _verify(self, draft: Draft, whole: Draft) -> tuple[Tensor, Tensor | None]:
        return super()._verify(draft, draft if draft.queries is None else extended(draft))

    def _groups(self, draft: Draft) -> list[np.ndarray]:
        return super()._groups(draft) if draft.early is None else [np.arange(len(draft.sizes))]

    def _outputs(self, draft: Draft, whole: Draft, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        if whole is draft and draft.early is None and not self._queries.count:
            outputs = self._chained(draft)
            if outputs is not None:
                return outputs
        output = self._verified(draft, whole, rows)
        self._queries.add(rows, output)
        return output.logits(), None if self.every is None else self.every.of(output)

    def _verified(self, draft: Draft, whole: Draft, rows: np.ndarray) -> Hidden:
        """Runs `whole`, the draft and its probe nodes; returns logits after the draft's nodes only."""
        queries, nodes = draft.queries, int(draft.sizes.max())
        if queries is None:
            if draft.early is None:
                return self._run(draft, rows)
            output = self._run(draft, rows, soft=draft.early.states, layers=slice(draft.early.layers, None))
            if self.states is None:
                return output
            return replace(output, taps={**draft.early.outputs(output.plan.width), **output.taps})
        if not queries.splices:
            return self._run(whole, rows, soft=inputs_of(draft, whole.width), wanted=nodes, run=queries.run)
        start, states, part = 0, None, draft
        for number, splice in enumerate(queries.splices):
            output = self._run(part, rows, soft=states, layers=slice(start, splice.layer + 1), wanted=nodes)
            last = number + 1 == len(queries.splices)
            part = whole if last else extended(replace(draft, queries=queries.until(number + 1)))
            begun = splice.make(output.states[:, :nodes])
            states = _appended(output.states, begun, queries.index[:, number, :nodes], part.width)
            start = splice.layer + 1
        return self._run(part, rows, soft=states, layers=slice(start, None), wanted=nodes)

    def split(self, values: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Splits the states that `verify` returned, [B, T, S], into `states` and `judged`; None for unused ones."""
        if values is None or self.every is None:
            return None, None
        own, judged = (
            None if wanted is None else self.every.part(values, wanted) for wanted in (self.states, self.judged)
        )
        return own, judged

    def keep_path(self, draft: Draft, verdict: Verdict) -> None:
        self._queries.pick(verdict)
        super().keep_path(draft, verdict)

    @property
    def reads_queries(self) -> bool:
        """Whether a stage reads the target's query vectors."""
        return self._queries.count > 0

    def last_queries(self) -> tuple[Tensor, ...]:
        """The target's query vectors, [B, n, H, D] per layer: see `Stage.last_queries`."""
        return self._queries.layers

    # --- one forward ---

    def _plan(
        self,
        draft: Draft,
        rows: np.ndarray,
        *,
        whole: bool = True,
        narrow: bool = False,
        soft: Tensor | None = None,
        layers: slice | None = None,
        wanted: int | None = None,
        taps: bool = True,
    ) -> Plan:
        """Like `VerifyForward._plan`, for some `layers` only, with logits after the first `wanted` nodes only.

        Without `taps` the forward returns no states.
        """
        plan = super()._plan(draft, rows, whole=whole, narrow=narrow)
        return replace(
            plan,
            want=plan.want[:, :wanted],
            soft=None if soft is None else soft[:, : plan.width],
            layers=layers,
            hidden=self.every.layers if self.every is not None and taps else (),
            queries=self._queries.count and (plan.width if whole else self._queries.count),
        )


def _appended(states: Tensor, begun: Tensor, index: Tensor, width: int) -> Tensor:
    """[.., width, E]: `states` [.., W, E] with `begun` [.., T, E] inserted at indices `index` [B, T]; -1 is skipped."""
    index = torch.where(index < 0, width, index).repeat(len(states) // len(index), 1)
    wide = pad(states, (0, 0, 0, width + 1 - states.shape[1]))
    return wide.scatter(1, index[..., None].expand_as(begun), begun)[:, :-1]
