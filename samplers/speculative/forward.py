"""The forwards of the verify loop: the prompt once, then a draft a round, over one aligned cache.

A prompt that all rows of a request have, or the beginning of theirs: fed once, as one row, its K/V in memory once.

Hydragen: High-Throughput LLM Inference with Shared Prefixes, https://arxiv.org/abs/2402.05099
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from pardec.models.caches.kv_cache import KVCache
from pardec.models.finite import Run
from pardec.models.hidden import Hidden, TargetStates
from pardec.models.images.conditioned import copy_cache_rows
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ..prefix_reuse import PrefixReuse
from ..request import Request
from ..traits import Trait
from .contracts import Cache, Draft, Verdict
from .probe_nodes import QueryVectors, extended, inputs_of
from .sequences import Sequences

# Slots of K/V saved, from which on a prompt is shared: rows beyond the first times its tokens. On a CPU a step of two
# rows takes up to a third longer with a tiny model, since each layer attends twice, and one of 8 rows at 128 tokens a
# tenth; a shorter prompt's forward saved does not make up for that within an answer (benchmarks/shared_prefix.md).
LEAST_SLOTS = 768


def shared_length(model: LanguageModel, request: Request, text: Sequences, *, begins: bool) -> int:
    """The tokens that the rows hold in common, 0 where they share none: those of one prompt or, where `begins`, those
    that prompts which go on differently begin with."""
    least, rows = int(text.length.min()), len(text)
    alike = (text.host[:, :least] == text.host[0, :least]).all(0)
    length = least if alike.all() else int(alike.argmin())
    if length < text.length.max():  # every row has at least one token of its own, and may go on from a stored prefix
        length = min(length, least - 1) if begins and model.prefix_cache is None else 0
    worth = rows > 1 and length > 0 and (rows - 1) * length >= LEAST_SLOTS
    if not (request.share_prompt and worth and length < text.limit.max()):
        return 0
    if model.device.type != "cpu":  # where it has not been measured
        return 0
    return length if model.shared_prefix_off_reason is None else 0


def of_all_rows(hidden: Hidden, count: int) -> Hidden:
    """The forward of one row as that of `count` rows alike: views, and nothing is computed again but logits."""
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
    """[B] the first position and the count of those that the prompts' forwards fed for each row.

    The first row fed what all of them share, behind the tokens that it `reused`.
    """
    base = np.full_like(length, shared)
    base[0] = reused
    return base, length - base


_SHORT = 8  # missing tokens of a row, up to which a drafting model feeds all rows in one forward
_SLACK = 1.25  # positions fed, padding included, over those needed: above this ratio rows are fed in groups


def grouped(sizes: np.ndarray) -> list[np.ndarray]:
    """Groups of rows for one forward each: few groups, with padding of at most a quarter of the positions needed.

    >>> [rows.tolist() for rows in grouped(np.array([3, 40, 4, 38]))]
    [[1, 3], [0, 2]]
    """
    if sizes.max() * len(sizes) <= _SLACK * sizes.sum():
        return [np.arange(len(sizes))]
    order = np.argsort(-sizes, kind="stable")
    groups, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or sizes[order[start]] * (end + 1 - start) > _SLACK * sizes[order[start : end + 1]].sum():
            groups.append(np.sort(order[start:end]))
            start = end
    return groups


def catch_up_groups(missing: np.ndarray) -> list[np.ndarray]:
    """`grouped`, but one group where no row misses many tokens: a second forward costs more than padding."""
    return grouped(missing) if missing.max() > _SHORT else [np.arange(len(missing))]


@dataclass(slots=True)
class FedNodes:
    """The positions that one forward fed for each live row, for the trace."""

    rows: np.ndarray  # [n]
    base: np.ndarray  # [n] position of node 0
    sizes: np.ndarray  # [n] nodes
    depths: np.ndarray | None = None  # [T] or [n, T] of trees

    def of(self, at: int) -> range | tuple[int, ...]:
        """The positions that the row at index `at` fed."""
        base, size = int(self.base[at]), int(self.sizes[at])
        if self.depths is None:
            return range(base, base + size)
        depths = (self.depths if self.depths.ndim == 1 else self.depths[at])[:size]
        if depths[-1] == size - 1:  # each node is the child of the one before it
            return range(base, base + size)
        return tuple((base + depths).tolist())


class VerifyForward:
    """Runs the model for one request and keeps its cache."""

    def __init__(
        self,
        model: LanguageModel,
        text: Sequences,
        nodes: int,
        states: TargetStates | None = None,
        *,
        shared: int = 0,
        stage: Cache | None = None,
        queries: int = 0,
        judged: TargetStates | None = None,
    ) -> None:
        """`states` are what every forward is to give beside logits; drafts have at most `nodes` nodes.

        `judged` are further ones that `verify` gives, side by side with them.
        `shared` tokens, with which all rows begin, have their K/V in memory once; 0: they share none. `stage` makes
        the cache, where it is not the model's own. `queries` is what stages ask for as `Stage.last_queries`.
        """
        self.model, self.text, self.states = model, text, states
        self.judged = judged
        self.every = judged if states is None else states | judged
        room = len(text), int(text.limit.max())
        self.cache: KVCache = (
            model.new_cache(*room, scratch=nodes - 1, shared=shared)
            if stage is None
            else stage.new_cache(model, *room, scratch=nodes - 1, shared=shared)
        )
        self.order = torch.arange(self.cache.reach + 1, device=text.device)
        self._queries = QueryVectors(queries)
        self.fed: list[FedNodes] = []
        self.runs: list[Run] = []  # the forwards of the present round
        self.padded = 0  # padding positions fed
        self.reuse = PrefixReuse(
            model, self.cache if stage is None or Trait.SHARES_PROMPTS in stage.provides else None, len(text)
        )
        self._fresh: list[tuple[np.ndarray, Tensor | None]] = []  # rows of a prompt's forward, and `states` of them

    def prompt(self, *, narrow: bool) -> Iterator[tuple[np.ndarray, Hidden, Hidden]]:
        """Feeds the prompts: for each group of live rows, the rows, the forward, and what drafters read of the prompts.

        With `narrow`, logits can be computed only behind the last token, and drafters read nothing. Otherwise they read
        the `states` at all tokens, also at those whose K/V come from the prefix cache. A drafter without `states` reads
        logits, which are not stored: then no prefix is copied. Of rows that begin alike, the first goes ahead; where
        all of them share their prompt, it goes alone, for all.
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
                if later.any() and bool(hidden.states.isfinite().all()):  # others go on from these
                    self.store_prompts()
        self.fed.append(FedNodes(text.rows, reuse.length.copy(), text.length - reuse.length))

    def _shared_prompts(
        self, most: int, wanted: TargetStates | None, how: dict[str, Any]
    ) -> Iterator[tuple[np.ndarray, Hidden, Hidden]]:
        """What `prompt` gives, where rows share tokens: the first row feeds those, and then each what is its own."""
        text, reuse, shared = self.text, self.reuse, self.cache.offset
        for at in range(len(text)):
            reuse.begin(at, text.row(at), min(most, shared - 1) if at == 0 else 0, wanted)
        first, base = np.arange(1), reuse.length[:1].copy()
        beginning = self._run(self._prompts(first, base, shared), first, self.cache.shared, whole=False, **how)
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
            whole = hidden if states is None or wanted is None else self._behind(states, hidden, rows, wanted)
            if reuse.prefixes is not None:
                self._fresh.append((rows, None if wanted is None else wanted.of(whole)))
            yield rows, hidden, whole

    def _behind(self, beginning: Tensor, hidden: Hidden, rows: np.ndarray, wanted: TargetStates) -> Hidden:
        """The states at all tokens of the prompts: `beginning` [P, S], which all have, and then their own."""
        sizes = (self.text.length[rows] - len(beginning)).tolist()
        if any(sizes):
            parts = zip(wanted.of(hidden), sizes, strict=True)
            states = pad_sequence([torch.cat((beginning, own[:size])) for own, size in parts], batch_first=True)
        else:
            states = beginning.expand(len(rows), -1, -1)
        plan = self._plan(self._prompts(rows, np.zeros_like(rows)), rows, whole=False)
        return wanted.hidden(plan, states)

    def store_prompts(self) -> None:
        """Leaves the prompts of the last forwards to others; called once their logits are known to be finite."""
        for rows, states in self._fresh:
            for index, at in enumerate(rows.tolist()):
                own = None if states is None or self.states is None else (self.states, states[index])
                self.reuse.store(at, self.text.row(at)[: self.text.prompt[at]], own)
        self._fresh.clear()

    def _prompts(self, rows: np.ndarray, base: np.ndarray, stop: int | None = None) -> Draft:
        """The prompts of these live rows from position `base` [n] on, to before `stop`, or whole."""
        text = self.text
        tokens = text.tokens[torch.from_numpy(rows).to(text.device)]
        sizes = (text.length[rows] if stop is None else stop) - base
        if base.any() or stop is not None:
            order = torch.from_numpy(base[:, None] + np.arange(sizes.max())).to(text.device)
            tokens = tokens.gather(1, order.clamp(max=tokens.shape[1] - 1))
        return Draft(tokens, sizes, base)

    def _with_prefixes(self, hidden: Hidden, rows: np.ndarray, wanted: TargetStates) -> Hidden:
        """The states at all tokens of the prompts, those of stored prefixes included."""
        fresh, base = wanted.of(hidden), self.reuse.length[rows]
        parts = []
        for own, at, first in zip(fresh, rows.tolist(), base.tolist(), strict=True):
            rest = own[: int(self.text.length[at]) - first]
            parts.append(torch.cat((self.reuse.states(at, wanted).to(rest), rest)) if first else rest)
        plan = self._plan(self._prompts(rows, np.zeros_like(rows)), rows, whole=False)
        return wanted.hidden(plan, pad_sequence(parts, batch_first=True))

    def put(self, where: np.ndarray, other: VerifyForward) -> None:
        """Replaces the cache rows at `where`, and their conditions, by those of `other`."""
        copy_cache_rows(self.model.decoder, self.cache, torch.from_numpy(where), other.model.decoder, other.cache)
        self.reuse.put(where, other.reuse)
        self.order = torch.arange(self.cache.reach + 1, device=self.text.device)

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor | None]:
        """Raw logits [B, T, V] behind every node, and `every` state [B, T', S] there and at the draft's queries."""
        text = self.text
        whole = draft if draft.queries is None else extended(draft)
        depths = None if whole.depths is None else whole.depths.cpu().numpy()
        self.fed.append(FedNodes(text.rows, whole.base, whole.sizes, depths))
        self.runs.clear()
        groups = [np.arange(len(text))] if draft.early is not None else grouped(whole.sizes)
        if len(groups) == 1:
            output = self._verified(draft, whole, groups[0])
            self._queries.add(groups[0], output)
            raw, states = output.logits(), self._states(output)
            # Columns that no row uses.
            spare, unused = (0, 0, 0, draft.width - raw.shape[1]), (0, 0, 0, whole.width - output.plan.width)
            return pad(raw, spare) if spare[-1] else raw, pad(states, unused) if states is not None else None
        parts: list[list[tuple[np.ndarray, Tensor]]] = [[], []]
        for rows in groups:
            output = self._verified(_part(draft, rows), _part(whole, rows), rows)
            self._queries.add(rows, output)
            parts[0].append((rows, output.logits()))
            if (states := self._states(output)) is not None:
                parts[1].append((rows, states))
        widths = (draft.width, whole.width)
        logits, states = (
            self._joined(part, width) if part else None for part, width in zip(parts, widths, strict=True)
        )
        assert logits is not None
        return logits, states

    def _verified(self, draft: Draft, whole: Draft, rows: np.ndarray) -> Hidden:
        """The forward of a draft and, with it, of its queries, which `whole` has as nodes; logits are of the nodes."""
        queries, nodes = draft.queries, int(draft.sizes.max())
        if queries is None:
            output = self._run(draft, rows, soft=None if draft.early is None else draft.early.states)
            if draft.early is None or self.states is None:
                return output
            return replace(output, taps={**draft.early.outputs(output.plan.width), **output.taps})
        if not queries.splices:
            return self._run(whole, rows, soft=inputs_of(draft, whole.width), wanted=nodes)
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
        """The `states` and those `judged` among what `verify` gave [B, T, S]; None of either that is not wanted."""
        if values is None or self.every is None:
            return None, None
        own, judged = (
            None if wanted is None else self.every.part(values, wanted) for wanted in (self.states, self.judged)
        )
        return own, judged

    def _states(self, output: Hidden) -> Tensor | None:
        return None if self.every is None else self.every.of(output)

    def _joined(self, parts: list[tuple[np.ndarray, Tensor]], width: int) -> Tensor:
        """[B, width, *] of what groups of rows gave."""
        first = parts[0][1]
        whole = first.new_zeros(len(self.text), width, first.shape[-1])
        for rows, part in parts:
            whole[torch.from_numpy(rows).to(part.device), : part.shape[1]] = part
        return whole

    def keep_path(self, draft: Draft, verdict: Verdict) -> None:
        """Moves the K/V of the accepted path directly behind each row's committed tokens; called before the commit."""
        self._queries.pick(verdict)
        if draft.parents is None:
            return
        base = draft.start[:, None]
        index = self.order[1 : verdict.path.shape[1]]
        target = torch.where(index <= verdict.count[:, None], base + index, -1)
        self.cache.move(base + verdict.path[:, 1:], target)

    def last_queries(self) -> tuple[Tensor, ...]:
        """Of each layer [B, n, H, D], as `Stage.last_queries` says."""
        return self._queries.layers

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        self.reuse.keep(rows)
        if len(rows):
            self.cache.keep(torch.from_numpy(rows))

    def _run(self, draft: Draft, rows: np.ndarray, cache: KVCache | None = None, **options: Any) -> Hidden:
        """One forward of `draft` for the live `rows`; `options` are those of `_plan`. Another `cache` has no others."""
        plan = self._plan(draft, rows, **options)
        plan = plan if cache is None else replace(plan, rows=None)
        cache = self.cache if cache is None else cache
        if plan.layers is None or plan.layers.stop is None:
            self.padded += plan.width * len(rows) - int(draft.sizes.sum())
        self.runs.append((plan, cache))
        return self.model.run(plan, cache)

    def _plan(
        self,
        draft: Draft,
        rows: np.ndarray,
        *,
        soft: Tensor | None = None,
        layers: slice | None = None,
        whole: bool = True,
        wanted: int | None = None,
        narrow: bool = False,
        taps: bool = True,
    ) -> Plan:
        """The plan of `draft` for the live `rows`, of a part of the stack with `layers`.

        With `whole` logits are computed behind every node, or the first `wanted`, else behind the last; with `narrow`
        no others can be. Without `taps` nobody reads states.
        """
        width, base = int(draft.sizes.max()), draft.base
        if draft.early is not None:
            layers = slice(draft.early.layers, None)
        same = bool((base == base[0]).all() and (draft.sizes == width).all())
        start, all_rows = int(base[0]), len(rows) == len(self.text)
        device = self.text.device
        sizes = None if same else torch.from_numpy(draft.sizes).to(device)[:, None]
        first = start if same else draft.start[:, None]
        order = self.order[:width].expand(len(rows), width)
        slots = first + order if sizes is None else torch.where(order < sizes, first + order, -1)
        positions, visible = slots, Visible.causal()
        if draft.parents is not None:
            depth = draft.depth[:, :width]
            positions = first + depth if sizes is None else torch.where(order < sizes, first + depth, -1)
            visible = Visible.tree(draft.parent[:, :width], draft.start)
        want = order[:, :wanted] if whole else torch.from_numpy(draft.sizes - 1).to(device)[:, None]
        chain = same and draft.parents is None
        return Plan(
            tokens=draft.tokens[:, :width],
            positions=positions,
            slots=slots,
            visible=visible,
            lengths=torch.from_numpy(base + draft.sizes).to(device),
            want=want,
            soft=None if soft is None else soft[:, :width],
            layers=layers,
            hidden=self.every.layers if self.every is not None and taps else (),
            rows=None if all_rows else torch.from_numpy(rows).to(device),
            uniform=start + width if same else None,
            span=(start, start + width) if chain else None,
            narrow=narrow,
            queries=self._queries.count and (width if whole else self._queries.count),
        )


def _appended(states: Tensor, begun: Tensor, index: Tensor, width: int) -> Tensor:
    """[.., width, E]: `states` [.., W, E] with those `begun` [.., T, E] at the numbers `index` [B, T], -1: nowhere."""
    index = torch.where(index < 0, width, index).repeat(len(states) // len(index), 1)
    wide = pad(states, (0, 0, 0, width + 1 - states.shape[1]))
    return wide.scatter(1, index[..., None].expand_as(begun), begun)[:, :-1]


def _part(draft: Draft, rows: np.ndarray) -> Draft:
    """The draft of these rows only."""
    where = torch.from_numpy(rows).to(draft.tokens.device)
    parents, depths = draft.parents, draft.depths
    return Draft(
        draft.tokens[where],
        draft.sizes[rows],
        draft.base[rows],
        parents if parents is None or parents.dim() == 1 else parents[where],
        depths if depths is None or depths.dim() == 1 else depths[where],
        queries=None if draft.queries is None else draft.queries.rows(rows),
    )
