"""A verified chain as one CUDA graph: the target's forward, its verdict, and the commit of the accepted tokens.

    table     where each row's draft begins, how many nodes it has, its seed and round; written by the host
    memory    the rows' tokens, the drafted ones and the distributions they were sampled from; the graph appends what it
              accepts, and keeps the token after it, with which the next draft begins, and a draft module's states
    result    accepted nodes, next token, drafted tokens and probabilities: one copy to the host

The host cuts what it reads at an end token or a stop string, as ever; tokens that the graph wrote after the cut are of
a row that leaves. A round is captured if its draft is a chain, temperature and filters are all that changes the
target's logits, and the acceptance has the trait `NEEDS_NO_HOST`. The target's distributions of a captured round are
not kept: the drafter and the length controller need the trait `OBSERVES_TOKENS`. The number of slots that attention
reads is part of a graph's key, and so is whether the draft was sampled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from pardec.models.cuda_graphs.capture import CaptureError
from pardec.models.cuda_graphs.runner import GraphRunner, rounded, rounded_width
from pardec.models.cuda_graphs.static_cache import SLOTS
from pardec.models.cuda_graphs.steps import ForwardShape, Run, StepGraph, StepMemory
from pardec.models.errors import one_line
from pardec.models.plan import Plan, TargetStates, Visible

from ..cards import name_of
from ..host_transfer import DeviceColumn, Download, refill, refused, upload
from ..ops.confidence import probability_of
from ..rng import DeviceSeeds
from ..traits import Trait
from .contracts import Acceptance, Draft, RoundResult, RoundUniforms, SpeculativeSampler, TargetDistributions, Verdict
from .forward import VerifyForward
from .forward_features import ExtendedForward
from .sequences import Sequences

_CAUSAL = Visible.causal()
_MOST = 1 << 24  # the most logits of a captured round: a graph gives their memory to nobody else


class Loop(Protocol):
    """The part of the verify loop that a captured round uses."""

    text: Sequences
    sampler: SpeculativeSampler
    forward: VerifyForward
    memory: dict[int, Any]
    summary: dict[str, np.ndarray]
    request: Any
    processing: Any
    records: tuple[Any, ...]

    def commit(
        self, draft: Draft, distributions: TargetDistributions, verdict: Verdict, *, written: bool = False
    ) -> np.ndarray:
        """Commits by `summary`; returns [B] the tokens gained."""
        ...


class NotKept:
    """Placeholder for the distributions of a captured round; reading one raises RuntimeError."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"the target's distributions of a captured round are not kept, and a stage reads {name!r}")


def obstacle(loop: Loop) -> str | None:
    """Why no round of this request is captured whole; None if rounds that draft chains can be."""
    request, sampler, forward = loop.request, loop.sampler, loop.forward
    if request.conditions:
        return "rows begin with the condition of an image"
    if not loop.processing.only_filters:
        return "the request changes logits before the acceptance"
    if request.temperature and not hasattr(request.source, "seeds_of"):
        return "random numbers are recorded ones"
    if loop.records:
        return "log-probabilities are recorded"
    if sampler.cache is not None or forward.cache.shared is not None:
        return "a cache stage, or a shared prompt, changes the forward"
    if Trait.NEEDS_NO_HOST not in sampler.accept.provides or sampler.exact == "relaxed":
        return f"{name_of(sampler.accept)} needs the host"
    if isinstance(forward, ExtendedForward) and (forward.judged is not None or forward.reads_queries):
        return "a stage reads more of the forward"
    for stage in (sampler.draft, sampler.length):
        if stage is not None and Trait.OBSERVES_TOKENS not in stage.provides:
            return f"{name_of(stage)} does not say that it observes tokens alone"
    return None


class CapturedRound:
    """The captured rounds of one request."""

    def __init__(self, loop: Loop, graphs: GraphRunner) -> None:
        self.loop, self.graphs = loop, graphs
        self.obstacle = obstacle(loop)
        self.memory: StepMemory | None = None
        self._release: Callable[[], Any] | None = None
        self._home: Tensor | None = None  # the view of memory that `text.tokens` is
        self._samples = False  # whether a draft was sampled so far

    @staticmethod
    def of(loop: Loop) -> CapturedRound | None:
        """The captured rounds of a loop; None if its model captures none."""
        graphs = loop.forward.model.decoder
        return CapturedRound(loop, graphs) if isinstance(graphs, GraphRunner) and graphs.whole_steps else None

    def run(self, draft: Draft) -> RoundResult | None:
        """Verifies a draft as a graph, and commits; None if that has to run without one."""
        loop, text, drafter = self.loop, self.loop.text, self.loop.sampler.draft
        filters = None if loop.processing.unchanged else loop.processing.filtered
        states, width, rows = loop.forward.every, rounded_width(draft.width, _CAUSAL), rounded(len(text))
        many = "there are too many logits" if rows * width * loop.forward.model.vocab_size > _MOST else None
        if (reason := self.obstacle or _unsuited(draft) or many) is not None:
            self.graphs.step_counts[reason] += 1
            return None
        self._samples |= draft.q is not None
        memory = self._settled(states)
        shape = ForwardShape(rows, width, _CAUSAL, int((draft.base + draft.sizes).max()), None)
        table = self._table(draft, shape)
        with self.graphs.lock:
            graph = self._graph(memory, shape, states, filters, table, sampled=draft.q is not None)
            if graph is None:
                return None
            memory.tensors["drafted"][: len(text), : draft.width].copy_(draft.tokens)
            if draft.q is not None:
                memory.tensors["q"][: len(text), : draft.width].copy_(draft.q)
            refill(graph.table, table)
            graph.replay()
            outcome = self._outcome(memory, draft)
            parts = {"": graph.result, **drafter.to_observe(outcome, loop.memory.get(id(drafter)))}
            if draft.highest is not None:
                parts["highest"] = draft.highest
            download = Download(parts)
        loop.forward.add_captured(draft)
        text.nfe += 1
        read = download.read()
        packed = read.pop("")[: len(text)].copy()
        loop.summary = {**read, **_unpacked(packed, width, draft.width)}
        gained = loop.commit(draft, outcome.distributions, outcome.verdict, written=True)
        if (gained == loop.summary["count"] + 1).all():
            text.newest = outcome.verdict.next
        return replace(outcome, gained=gained, on_host=loop.summary)

    def close(self) -> None:
        """Releases the memory for other requests."""
        if self._release is not None:
            self._release()

    def _outcome(self, memory: StepMemory, draft: Draft) -> RoundResult:
        """The round before its commit; its tensors are copies, which the next replay leaves alone."""
        rows, width = draft.tokens.shape
        kept = {name: tensor[:rows].clone() for name, tensor in memory.tensors.items() if name in ("count", "next")}
        path = torch.arange(width, device=draft.tokens.device).expand_as(draft.tokens)
        states = memory.tensors["states"][:rows, :width].clone() if "states" in memory.tensors else None
        before = self.loop.text.length.copy()
        distributions = cast("TargetDistributions", NotKept())
        return RoundResult(
            draft, Verdict(path, kept["count"], kept["next"]), distributions, before, np.zeros_like(before), states
        )

    def _graph(
        self,
        memory: StepMemory,
        shape: ForwardShape,
        states: TargetStates | None,
        filters: Callable[[Tensor], Tensor] | None,
        table: np.ndarray,
        *,
        sampled: bool,
    ) -> StepGraph | None:
        accept, device, request = self.loop.sampler.accept, self.loop.text.device, self.loop.request
        greedy = not request.temperature
        return self.graphs.step(
            (accept, states, request.temperature, tuple(request.filters.items()), sampled),
            shape,
            self.loop.forward.cache,
            memory,
            lambda run: _Captured(accept, run, memory, shape.width, states, filters, greedy=greedy, sampled=sampled),
            lambda: upload(table, device).clone(),
        )

    def _table(self, draft: Draft, shape: ForwardShape) -> np.ndarray:
        """[R, 4]: the position of node 0, the number of nodes, the row's seed and round; 0 in rows that pad the batch.

        A greedy round has no seeds and rounds.
        """
        text, table = self.loop.text, np.zeros((shape.rows, 4), dtype=np.int64)
        columns = [draft.base, draft.sizes]
        if self.loop.request.temperature:
            columns += [self.loop.request.source.seeds_of(text.rows), text.nfe]
        table[: len(draft.base), : len(columns)] = np.stack(columns, 1)
        return table

    def _settled(self, states: TargetStates | None) -> StepMemory:
        """The memory, after the rows' tokens have moved into it, if they were elsewhere."""
        loop, text = self.loop, self.loop.text
        rows, columns = rounded(len(text)), -(-text.host.shape[1] // SLOTS) * SLOTS + 1
        width = rounded_width(loop.sampler.width(loop.forward.model), _CAUSAL)
        device, model = text.device, loop.forward.model
        size = ("round", rows, columns, width, states, str(device), self._samples)
        if self.memory is None or self.memory.size != size:
            left = self._release
            self._home = None

            def make() -> dict[str, Tensor]:
                with torch.inference_mode(False):
                    made = {
                        "tokens": torch.zeros(rows, columns, dtype=torch.int64, device=device),
                        "drafted": torch.zeros(rows, width, dtype=torch.int64, device=device),
                        "count": torch.zeros(rows, dtype=torch.int64, device=device),
                        "next": torch.zeros(rows, dtype=torch.int64, device=device),
                    }
                    if self._samples:
                        made["q"] = torch.zeros(rows, width, model.vocab_size, device=device)
                    if states is not None:
                        wide = (len(states.layers) + states.normed) * model.width
                        made["states"] = torch.zeros(rows, width, wide, dtype=model.dtype, device=device)
                return made

            self.memory = self.graphs.memories.acquire(size, make)
            self._release = finalizer = weakref.finalize(self, self.graphs.memories.release, self.memory)
            finalizer.atexit = False
            if left is not None:
                left()
        if self._home is None or text.tokens is not self._home:
            view = self.memory.tensors["tokens"][: len(text), : text.tokens.shape[1]]
            view.copy_(text.tokens)
            text.move_tokens(view)
            self._home = view
        return self.memory


def _unsuited(draft: Draft) -> str | None:
    """Why a draft's round is not captured whole; None if it is."""
    if draft.parents is not None or draft.verify is not None or draft.preaccepted is not None:
        return "the draft is no chain whose tokens are all tested"
    if draft.is_point_mass is not None:
        return "the draft has sampled tokens and known ones"
    if draft.early is not None or draft.queries is not None:
        return "the drafter adds to the verify forward"
    return None


def _unpacked(packed: np.ndarray, width: int, drafted: int) -> dict[str, np.ndarray]:
    """The summary of a round from its result [B, 2 + 2 W] or, with filters, [B, 2 + 3 W]."""
    summary = {"count": packed[:, 0], "next": packed[:, 1]}
    parts = [packed[:, at : at + drafted] for at in range(2, packed.shape[1], width)]
    for name, part in zip(("score", "0"), parts[1:], strict=False):
        summary[name] = part.copy().view(np.float64).astype(np.float32)
    return summary | ({"path_tokens": parts[0]} if drafted > 1 else {})


class _Captured:
    """The function that is captured: it reads the table, changes the round's memory and returns the result."""

    reads = ()

    def __init__(
        self,
        accept: Acceptance,
        run: Run,
        memory: StepMemory,
        width: int,
        states: TargetStates | None,
        filters: Callable[[Tensor], Tensor] | None,
        *,
        greedy: bool,
        sampled: bool,
    ) -> None:
        self.accept, self.run, self.tensors, self.width, self.states = accept, run, memory.tensors, width, states
        self.filters, self.greedy, self.sampled = filters, greedy, sampled

    def __call__(self, table: Tensor) -> Tensor:
        try:
            with refused():
                return self._round(table)
        except (AttributeError, TypeError) as error:  # an acceptance treats a column as an array
            raise CaptureError(one_line(error)) from error

    def _round(self, table: Tensor) -> Tensor:
        tensors, width = self.tensors, self.width
        base, size, seeds, rounds = (column.contiguous() for column in table.unbind(1))
        order = torch.arange(width, device=table.device).expand(len(table), width)
        positions = torch.where(order < size[:, None], base[:, None] + order, -1)
        drafted = tensors["drafted"][:, :width].contiguous()
        hidden_of = () if self.states is None else self.states.layers
        plan = Plan(drafted, positions, positions, _CAUSAL, base + size, order, hidden=hidden_of)
        hidden = self.run(plan)
        raw = hidden.logits(in_order=True)
        sizes: Any = DeviceColumn(size)
        starts: Any = DeviceColumn(base)
        logits = raw if self.filters is None else self.filters(raw)
        uniforms = RoundUniforms(cast("Any", DeviceSeeds(seeds)), cast("Any", seeds), cast("Any", rounds), table.device)
        q = tensors["q"][:, :width] if self.sampled else None
        verdict = self.accept.accept(
            Draft(drafted, sizes, starts, q=q), TargetDistributions(raw, logits, self.greedy), uniforms, None
        )
        # The accepted tokens and the one after them take the positions from base + 1 on; column C is no position.
        following = drafted.roll(-1, 1)
        tokens = torch.where(order == verdict.count[:, None], verdict.next[:, None], following)
        real = (order <= verdict.count[:, None]) & (size[:, None] > 0)
        where = torch.where(real, base[:, None] + 1 + order, tensors["tokens"].shape[1] - 1)
        tensors["tokens"].scatter_(1, where, tokens)
        tensors["count"].copy_(verdict.count)
        tensors["next"].copy_(verdict.next)
        if self.states is not None:
            tensors["states"][:, :width].copy_(self.states.of(hidden))
        flat = (torch.arange(len(table), device=table.device)[:, None] * width + order).flatten()
        scores = [probability_of(raw, flat, tokens.flatten()).view(order.shape)]
        scores += [] if self.filters is None else [logits.amax(-1)]  # as `features.highest_processed`
        bits = (score.double().view(torch.int64) for score in scores)
        return torch.cat((verdict.count[:, None], verdict.next[:, None], drafted, *bits), 1)
