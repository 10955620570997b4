"""The forwards of the verify loop: the prompts once, then one draft per round, over one aligned cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.caches.kv_cache import KVCache
from pardec.models.decoder import Decoder
from pardec.models.finite import Run
from pardec.models.images.conditioned import copy_cache_rows
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan, TargetStates, Visible

from ..batching import RowState
from ..host_transfer import upload
from ..prefix_reuse import PrefixReuse
from .contracts import Draft, Verdict
from .sequences import Sequences

_SHORT = 8  # if no row lacks more tokens, a drafting model feeds all rows in one forward
_CAUSAL = Visible.causal()
_SLACK = 1.25  # positions fed, padding included, over those needed: above this ratio rows are fed in groups


def grouped(sizes: np.ndarray) -> list[np.ndarray]:
    """Groups of rows for one forward each: few groups, with padding of at most a quarter of the positions needed.

    >>> [rows.tolist() for rows in grouped(np.array([3, 40, 4, 38]))]
    [[1, 3], [0, 2]]
    """
    if sizes.max() * len(sizes) <= _SLACK * sizes.sum():
        return [np.arange(len(sizes))]
    order = np.argsort(-sizes, kind="stable")
    longest, needed = sizes[order].tolist(), [0, *sizes[order].cumsum().tolist()]
    groups, start = [], 0
    for end in range(1, len(order) + 1):
        if end == len(order) or longest[start] * (end + 1 - start) > _SLACK * (needed[end + 1] - needed[start]):
            groups.append(np.sort(order[start:end]))
            start = end
    return groups


def catch_up_groups(missing: np.ndarray) -> list[np.ndarray]:
    """Like `grouped`, but one group if no row misses many tokens: a second forward costs more than padding."""
    return grouped(missing) if missing.max() > _SHORT else [np.arange(len(missing))]


@dataclass(slots=True)
class FedNodes:
    """The positions that one forward fed for each live row, for the trace."""

    rows: np.ndarray  # [n]
    base: np.ndarray  # [n] position of node 0
    sizes: np.ndarray  # [n] number of nodes
    depths: np.ndarray | Tensor | None = None  # [T] or [n, T] for trees; a tensor until the round's transfer

    def of(self, at: int) -> range | tuple[int, ...]:
        """The positions that were fed for the row at index `at`."""
        base, size = int(self.base[at]), int(self.sizes[at])
        if self.depths is None:
            return range(base, base + size)
        assert isinstance(self.depths, np.ndarray), "the round is over"
        depths = (self.depths if self.depths.ndim == 1 else self.depths[at])[:size]
        if depths[-1] == size - 1:  # each node is the child of the one before it
            return range(base, base + size)
        return tuple((base + depths).tolist())


class CacheRows:
    """A cache, and its image conditions, whose rows follow the texts' when some are kept or replaced."""

    def __init__(self, stack: Any, cache: KVCache) -> None:
        """`stack`: the model's layers that use the cache; only an image model has conditions."""
        self.stack, self.cache = stack, cache

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        if len(rows):
            self.cache.keep(torch.from_numpy(rows))

    def put(self, where: np.ndarray, other: CacheRows) -> None:
        """Replaces the rows at `where` by the rows of `other`."""
        copy_cache_rows(self.stack, self.cache, torch.from_numpy(where), other.stack, other.cache)


class VerifyForward(RowState):
    """Runs the model for one request over its cache, and returns logits.

    `ExtendedForward` is for requests whose stages need more from a forward, or feed more to it.
    """

    per_row = ("cache_rows",)
    reuse: PrefixReuse | None = None  # the rows' use of the model's prefix cache

    def __init__(
        self, model: LanguageModel, text: Sequences, cache: KVCache, every: TargetStates | None = None
    ) -> None:
        """`every`: the states of the target that `verify` returns in addition to logits."""
        self.model, self.text, self.cache, self.every = model, text, cache, every
        self.cache_rows = CacheRows(model.decoder, cache)
        self.order = torch.arange(cache.reach + 1, device=text.device)
        self.fed: list[FedNodes] = []
        self.runs: list[Run] = []  # the forwards of the current round
        self.chained: Draft | None = None  # the draft of the current round, where it ran without a plan
        self.padded = 0  # padding positions fed
        self._chain = self._new_chain()

    def prompt(self, *, narrow: bool) -> Iterator[tuple[np.ndarray, Hidden, Hidden]]:
        """Feeds the prompts; yields for each group of live rows: the rows, the forward, and the forward for drafters.

        With `narrow`, logits can be computed only after the last token, and drafters read nothing.
        """
        text = self.text
        self.runs.clear()
        base = np.zeros_like(text.length)
        for rows in grouped(text.length):
            hidden = self._run(self._prompts(rows, base[rows]), rows, whole=False, narrow=narrow)
            yield rows, hidden, hidden
        self.fed.append(FedNodes(text.rows, base, text.length.copy()))

    def store_prompts(self) -> None:
        """Called after the prompts' forwards, once their logits are known to be finite."""

    def _prompts(self, rows: np.ndarray, base: np.ndarray, stop: int | None = None) -> Draft:
        """A draft of the prompts of these live rows from position `base` [n] on, up to `stop` or to their ends."""
        text = self.text
        tokens = text.tokens[upload(rows, text.device)]
        sizes = (text.length[rows] if stop is None else stop) - base
        if base.any() or stop is not None:
            order = upload(base[:, None] + np.arange(sizes.max()), text.device)
            tokens = tokens.gather(1, order.clamp(max=tokens.shape[1] - 1))
        return Draft(tokens, sizes, base)

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor | None]:
        """Raw logits [B, T, V] after every node, and the states `every` [B, T', S] at nodes and probe nodes."""
        return self._verify(draft, draft)

    def _verify(self, draft: Draft, whole: Draft) -> tuple[Tensor, Tensor | None]:
        """The forward of `draft`; `whole` includes its probe nodes."""
        text = self.text
        depths: Tensor | np.ndarray | None = whole.depths
        if whole.depths is not None and whole.depths.device.type == "cpu":
            depths = whole.depths.numpy()
        self.fed.append(FedNodes(text.rows, whole.base, whole.sizes, depths))
        self.runs.clear()
        self.chained = None
        groups = self._groups(whole)
        if len(groups) == 1:
            raw, states = self._outputs(draft, whole, groups[0])
            # Pads the columns that no row uses.
            spare, unused = draft.tokens.shape[1] - raw.shape[1], 0
            if states is not None and (unused := whole.tokens.shape[1] - states.shape[1]):
                states = pad(states, (0, 0, 0, unused))
            return pad(raw, (0, 0, 0, spare)) if spare else raw, states
        parts: list[list[tuple[np.ndarray, Tensor]]] = [[], []]
        for rows in groups:
            raw, states = self._outputs(draft.of_rows(rows), whole.of_rows(rows), rows)
            parts[0].append((rows, raw))
            if states is not None:
                parts[1].append((rows, states))
        logits = self._joined(parts[0], draft.width)
        return logits, self._joined(parts[1], whole.width) if parts[1] else None

    def add_captured(self, draft: Draft) -> None:
        """Records the forward of a chain that ran within a graph, with all rows in one."""
        self.fed.append(FedNodes(self.text.rows, draft.base, draft.sizes))
        self.runs.clear()
        self.padded += int(draft.sizes.max()) * len(draft.sizes) - int(draft.sizes.sum())

    def _groups(self, draft: Draft) -> list[np.ndarray]:
        """The groups of rows, one for each forward of a round."""
        return [np.zeros(1, dtype=np.int64)] if len(draft.sizes) == 1 else grouped(draft.sizes)

    def _outputs(self, draft: Draft, whole: Draft, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Logits and the states `every` of the live `rows`, as wide as the widest of them."""
        return self._chained(draft) or (self._run(draft, rows).logits(in_order=True), None)

    def _joined(self, parts: list[tuple[np.ndarray, Tensor]], width: int) -> Tensor:
        """[B, width, *]: the outputs of groups of rows in the order of live rows."""
        first = parts[0][1]
        whole = first.new_zeros(len(self.text), width, first.shape[-1])
        for rows, part in parts:
            whole[upload(rows, part.device), : part.shape[1]] = part
        return whole

    def keep_path(self, draft: Draft, verdict: Verdict) -> None:
        """Moves the K/V of the accepted path directly after each row's committed tokens; called before the commit."""
        if draft.parents is None:
            return
        base = draft.start[:, None]
        index = self.order[1 : verdict.path.shape[1]]
        target = torch.where(index <= verdict.count[:, None], base + index, -1)
        self.cache.move(base + verdict.path[:, 1:], target)

    def last_runs(self) -> list[Run]:
        """The forwards of the current round."""
        if self.chained is not None and not self.runs:
            self.runs.append((self._plan(self.chained, np.zeros(1, dtype=np.int64)), self.cache))
        return self.runs

    def _new_chain(self) -> Any:
        """The decoder's `Chain` for forwards of single rows that return the states `every`; None where it has none."""
        decoder = self.model.decoder
        return decoder.chain(self.cache, self.every or TargetStates()) if type(decoder) is Decoder else None

    def _chained(self, draft: Draft) -> tuple[Tensor, Tensor | None] | None:
        """Logits and states of a chain in one call; None where a forward with a plan has to run."""
        if self._chain is None or draft.parents is not None:
            return None
        outputs: tuple[Tensor, Tensor | None] | None
        outputs = self._chain.run(draft.tokens[:, : int(draft.sizes[0])], int(draft.base[0]))
        if outputs is not None:
            self.chained = draft
        return outputs

    def rows_changed(self) -> None:
        self._chain = self._new_chain()
        self.order = torch.arange(self.cache.reach + 1, device=self.text.device)

    def _run(
        self,
        draft: Draft,
        rows: np.ndarray,
        *,
        cache: KVCache | None = None,
        run: Callable[[Plan, KVCache | None], Hidden] | None = None,
        **options: Any,
    ) -> Hidden:
        """Runs one forward of `draft` for the live `rows`, planned by `_plan` with these options.

        A given `cache` has exactly these rows. `run` takes the place of the model's.
        """
        plan = self._plan(draft, rows, **options)
        if cache is None:
            cache = self.cache
        else:
            plan = replace(plan, rows=None)
        if plan.layers is None or plan.layers.stop is None:  # a forward in parts counts once
            self.padded += plan.tokens.numel() - int(draft.sizes.sum())
        self.runs.append((plan, cache))
        return (run or self.model.run)(plan, cache)

    def _plan(self, draft: Draft, rows: np.ndarray, *, whole: bool = True, narrow: bool = False) -> Plan:
        """The plan of `draft` for the live `rows`.

        With `whole` logits are computed after every node, else after the last; with `narrow` no others can be.
        """
        width, base, sizes = int(draft.sizes.max()), draft.base, draft.sizes
        start, device = int(base[0]), self.text.device
        same = len(base) == 1 or bool((base == start).all() and (sizes == width).all())
        order = self.order[:width].expand(len(rows), width)
        positions = slots = (
            start + order
            if same
            else torch.where(order < upload(sizes, device)[:, None], draft.start[:, None] + order, -1)
        )
        visible = _CAUSAL
        if draft.parents is not None:
            positions = torch.where(slots < 0, -1, draft.start[:, None] + draft.depth[:, :width])
            visible = Visible.tree(draft.parent[:, :width], draft.start)
        lengths, own = upload(base + sizes, device), None if len(rows) == len(self.text.rows) else upload(rows, device)
        known: list[tuple[Tensor, np.ndarray]] = []
        if device.type != "cpu":  # there a cache reads the tensors themselves
            index = np.arange(width)
            known = [(lengths, base + sizes), (slots, np.where(index < sizes[:, None], base[:, None] + index, -1))]
            known += [] if own is None else [(own, rows)]
        return Plan(
            tokens=draft.tokens[:, :width],
            positions=positions,
            slots=slots,
            visible=visible,
            lengths=lengths,
            want=order if whole else upload(sizes - 1, device)[:, None],
            rows=own,
            uniform=start + width if same else None,
            span=(start, start + width) if same and draft.parents is None else None,
            narrow=narrow,
            known=tuple(known),
        )
