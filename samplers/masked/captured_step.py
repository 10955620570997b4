"""A whole step as one CUDA graph: forward, head, confidence, candidates, selection and commit.

The host plans a step as ever, and knows what it wrote to the table of the last one: within a block of a cache with a
fixed window nothing has changed, and a step is one replay and one copy of the tokens. Where the table does change, one
upload precedes the replay. The canvas, and tensors in the states of stages, lie in memory that the graph reads and
writes; in between they are what they are without graphs, so that any step may run without one.

A step is captured if nothing of the request acts between its forward and its commit, and all stages that decide have
the trait `NEEDS_NO_HOST`. The stages' own code is captured, as `MaskedLoop.choose` calls it.

Where the host knows how many tokens a step commits (`Select.commits`), and that it completes no block, its tokens feed
nothing but the step's event: the host reads them after it has launched the next step, for which the device never waits.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pardec.models.cuda_graphs.capture import CaptureError
from pardec.models.cuda_graphs.runner import GraphRunner, rounded, rounded_width
from pardec.models.cuda_graphs.static_cache import SLOTS
from pardec.models.cuda_graphs.steps import ForwardShape, Run, StepGraph, StepMemory
from pardec.models.errors import ModelError, one_line
from pardec.models.plan import Plan

from ..cards import name_of
from ..host_transfer import DeviceColumn, Download, refill, refused, upload
from ..ops.confidence import Confidence
from ..ops.distribution import DenseDistribution
from ..rng import keys_at
from ..traits import Trait
from .canvas import CONTENTS, Canvas, DeviceCanvas, Update
from .contracts import Choice, Evidence, Inputs, MaskedSampler, Proposal, QuerySpec, Request, Stage
from .predict import MaskedForward
from .query_plan import Arranged, Queries
from .recorder import Before, TraceRecorder


class Loop(Protocol):
    """The part of the masked loop that a captured step uses."""

    canvas: Canvas
    sampler: MaskedSampler
    forward: MaskedForward
    request: Request
    recorder: TraceRecorder
    before: Before | None  # the canvas before the step, if it is known
    note_late: Callable[[Before, int], None] | None  # see `MaskedLoop`
    select_state: Any
    memory: dict[int, Any]  # the state of each stage, by the stage's id
    prepared: bool  # whether the logits stages are prepared for the coming change
    late: list[Inputs]  # stages that observe changed logits
    with_evidence: Any  # hooks of a step: see `MaskedLoop`
    with_decision: Any
    after_commit: Any
    ended: Any

    def prepare_logits(self) -> None:
        """Runs the logits stages' work on the host, once before they change logits."""
        ...

    def choose(self, evidence: Evidence) -> tuple[Choice, Proposal, Stage]:
        """Chooses the tokens to commit."""
        ...

    def look_before(self) -> Before:
        """The canvas before the step; later calls in the step return the same copy."""
        ...


def obstacle(loop: Loop) -> str | None:
    """Why steps of this request are not captured whole; None if they are."""
    request, forward = loop.request, loop.forward
    if request.conditions:
        return "rows begin with the condition of an image"
    if loop.with_decision or loop.after_commit or loop.canvas.moving:
        return "the request or a stage acts between forward and commit"
    if forward.tail is None or type(forward) is not MaskedForward:
        return "the request or a stage reads or changes logits before the sampler"
    if forward.begin or forward.prepare or forward.complete or forward.visible is not None:
        return "the request or a stage changes the forward"
    if loop.with_evidence or loop.late:
        return "a stage observes forwards"
    for stage in _deciding(loop):
        if Trait.NEEDS_NO_HOST not in stage.provides:
            return f"{name_of(stage)} needs the host"
    if request.temperature and not hasattr(request.source, "row_keys"):
        return "random numbers are recorded ones"
    return None


def _deciding(loop: Loop) -> tuple[Stage, ...]:
    """The stages that are part of a captured step."""
    sampler = loop.sampler
    return (*sampler.logits, sampler.propose, sampler.select, *sampler.widen)


class CapturedStep:
    """The captured steps of one request."""

    def __init__(self, loop: Loop, graphs: GraphRunner) -> None:
        self.loop, self.graphs = loop, graphs
        self.obstacle = obstacle(loop)
        self.memory: StepMemory | None = None
        self._release: Callable[[], Any] | None = None
        self._home: list[Tensor] = []  # the views of memory that the canvas and the states have
        self._laid: tuple[bytes, Arranged | None] = b"", None  # the last queries, arranged

    @staticmethod
    def of(loop: Loop) -> CapturedStep | None:
        """The captured steps of a loop; None if its model captures none."""
        graphs = loop.forward.model.decoder
        return CapturedStep(loop, graphs) if isinstance(graphs, GraphRunner) and graphs.whole_steps else None

    def run(self, query: QuerySpec, queries: Queries) -> bool:
        """Makes the step as a graph, the commit included; False if it has to run without one."""
        loop, canvas = self.loop, self.loop.canvas
        each, reason = self._arranged(query, queries)
        if each is None:
            self.graphs.step_counts[reason] += 1
            canvas.renew_eligible()
            return False
        loop.prepare_logits()
        memory, count = self._settled(), self._known_count(query)
        tokens = canvas.tokens_host.copy() if canvas.on_host else None
        columns, shape = self._columns(memory), self._shape(each)
        with self.graphs.lock:
            graph = self._graph(memory, shape, each, columns)
            if graph is not None:
                self._fill(graph, shape, each, columns)
                graph.replay()
                memory.replays += 1
                download = Download({"": graph.result})
        if graph is None:
            canvas.renew_eligible()
            return False
        loop.prepared = False
        canvas.read_tokens()  # the tokens of the step before
        before = loop.look_before()
        tokens = canvas.tokens_host if tokens is None else tokens
        finish = partial(self._finish, download, memory.tensors["tokens"].shape, queries, each, tokens)
        if count is None:
            finish(canvas.committed_on_device)
        else:
            canvas.committed_unread(count, partial(self._read_late, finish, before, len(loop.recorder.history) - 1))
        return True

    def _finish(
        self,
        download: Download,
        shape: torch.Size,
        queries: Queries,
        each: Arranged,
        before: np.ndarray,
        take: Callable[[np.ndarray | None], None],
    ) -> None:
        """Reads the result of a step, whose tokens `take` gets. Raises the error for logits that are not finite."""
        canvas, read, packed = self.loop.canvas, download.read()[""], None
        highest = float(read[-1:].view(np.float64)[0])
        if not canvas.on_host:
            packed = read[:-1].reshape(shape)[: len(canvas), : canvas.length + 1]
        take(packed)
        if not math.isfinite(highest):
            self._fail(queries, each, before)

    def _read_late(self, finish: Callable[[Callable[..., None]], None], before: Before, number: int) -> None:
        """Reads step `number` after the host has counted its tokens."""
        loop, canvas = self.loop, self.loop.canvas
        counted = canvas.block_remaining
        finish(canvas.receive)
        if (canvas.block_remaining != counted).any():
            raise RuntimeError(f"{name_of(loop.sampler.select)} committed another number of tokens than it said")
        assert loop.note_late is not None, "read late for it"
        loop.note_late(before, number)

    def close(self) -> None:
        """Releases the memory for other requests. The canvas and the states of stages cannot be used any more."""
        if self._release is not None:
            self._release()

    # --- what the graph of a step depends on ---

    def _arranged(self, query: QuerySpec, queries: Queries) -> tuple[Arranged | None, str]:
        """The arrays of the step's forward; or None, and the reason why it is not captured."""
        canvas, forward = self.loop.canvas, self.loop.forward
        if self.obstacle is not None:
            return None, self.obstacle
        if query.must is not None or query.only is not None or query.similar is not None or query.shifted is not None:
            return None, "the cache restricts the step to a part of the block"
        key = queries.key + canvas.block_start.tobytes() + canvas.block_end.tobytes() + canvas.end.tobytes()
        if self._laid[0] != key:
            self._laid = key, forward.layout.arranged_together(queries)
        if self._laid[1] is None:
            return None, "rows of different widths run in two forwards"
        if not forward.captures(rounded(len(canvas)) * canvas.window_host.shape[1]):
            return None, "there are too many logits"
        return self._laid[1], ""

    def _known_count(self, query: QuerySpec) -> np.ndarray | None:
        """[B] how many tokens the step commits, if the host knows it and need not read them before the next launch."""
        loop, canvas = self.loop, self.loop.canvas
        if loop.note_late is None or canvas.on_host or canvas.sliding or loop.ended or loop.sampler.widen:
            return None
        if query.mask is not None:
            return None  # the tokens may decide which positions are computed
        count = loop.sampler.select.commits(canvas, loop.select_state)
        return None if count is None or (count >= canvas.block_remaining).any() else count

    def _shape(self, each: Arranged) -> ForwardShape:
        visible = self.loop.forward.model.visible()
        width = rounded_width(each.positions.shape[1], visible)
        return ForwardShape(rounded(len(self.loop.canvas)), width, visible, each.uniform, each.span)

    def _graph(
        self, memory: StepMemory, shape: ForwardShape, each: Arranged, columns: list[np.ndarray]
    ) -> StepGraph | None:
        loop, request = self.loop, self.loop.request
        window, law = loop.canvas.window_host.shape[1], (request.temperature, tuple(request.filters.items()))
        kinds = tuple(array.dtype.str for array in columns)
        layout = _Table(shape.width, window, len(columns))

        def table() -> Tensor:
            every = self._table(shape, each, columns, range(len(columns)))
            return upload(every, loop.canvas.tokens.device).clone()

        return self.graphs.step(
            (_deciding(loop), loop.forward.tail, law, window, kinds),
            shape,
            loop.forward.cache,
            memory,
            lambda run: _Captured(loop, run, memory, shape.visible, layout, columns),
            table,
        )

    # --- the host's part ---

    def _states(self) -> list[Any]:
        """The states of the stages that decide, in order; logits, select and widen stages have one."""
        return [self.loop.memory.get(id(stage)) for stage in _deciding(self.loop)]

    def _columns(self, memory: StepMemory) -> list[np.ndarray]:
        """[B] each: the numbers of the host that a step may read: forwards, clock, key, and the states' arrays."""
        loop, canvas = self.loop, self.loop.canvas
        keys = canvas.nfe
        if loop.request.temperature:
            source: Any = loop.request.source
            keys = source.row_keys(canvas.rows, "token")
        arrays = [getattr(*at) for state in self._states() for at in _places(state, np.ndarray)]
        return [canvas.nfe - memory.replays, canvas.step - memory.replays, keys, *arrays]

    def _fill(self, graph: StepGraph, shape: ForwardShape, each: Arranged, columns: list[np.ndarray]) -> None:
        """Uploads the table, unless it equals the one of the graph's last replay."""
        table = self._table(shape, each, columns, graph.reads)
        if graph.sent is None or not np.array_equal(graph.sent, table):
            refill(graph.table, table)
            graph.sent = table

    def _table(
        self, shape: ForwardShape, each: Arranged, columns: list[np.ndarray], reads: Sequence[int]
    ) -> np.ndarray:
        """The table of the coming step, with 0 in columns that are not read."""
        canvas, memory, count = self.loop.canvas, self.memory, len(self.loop.canvas)
        assert memory is not None, "settled"
        layout = _Table(shape.width, canvas.window_host.shape[1], len(columns))
        table = np.full((shape.rows, layout.size), -1)
        positions, want, block, rest = layout.split(table)
        block[:], rest[:] = memory.tensors["tokens"].shape[1] - 1, 0
        positions[:count, : each.positions.shape[1]] = each.positions
        want[:count], block[:count], rest[:count, 0] = each.want, canvas.window_host, each.end
        for at in reads:
            rest[:count, 1 + at] = _as_integers(columns[at])
        return table

    def _fail(self, queries: Queries, each: Arranged, before: np.ndarray) -> None:
        """Raises the error for logits that are not finite, with the cause that a forward without graphs finds."""
        canvas, forward = self.loop.canvas, self.loop.forward
        forward.lay(queries)
        at = np.where(each.positions < 0, canvas.length, each.positions)
        tokens = upload(np.take_along_axis(before, at, 1), canvas.tokens.device)
        forward.runs[:] = [(replace(forward.groups[0].plan, tokens=tokens), forward.cache)]
        error = forward.failure()
        raise error or ModelError(f"logits of {forward.model.name} under {self.loop.sampler.spec} are not finite")

    # --- memory ---

    def _settled(self) -> StepMemory:
        """The memory, into which the tensors of the canvas and the stages are moved if they are elsewhere."""
        canvas = self.loop.canvas
        places = [(canvas, name) for name in CONTENTS]
        places += [at for state in self._states() for at in _places(state, Tensor)]
        values = [getattr(*at) for at in places]
        rows, columns = rounded(len(canvas)), -(-canvas.length // SLOTS) * SLOTS + 1
        shapes = [
            (rows, columns) if owner is canvas else (rows, *values[at].shape[1:])
            for at, (owner, _) in enumerate(places)
        ]
        size = tuple((shape, value.dtype, value.device) for shape, value in zip(shapes, values, strict=True))
        left: Callable[[], Any] | None = None
        if self.memory is None or self.memory.size != size:
            left, self._home = self._release, []
            self._take_memory(size)
        memory = self.memory
        assert memory is not None, "taken"
        for at, ((owner, name), value) in enumerate(zip(places, values, strict=True)):
            if self._home and value is self._home[at]:
                continue
            static = memory.tensors[CONTENTS[at] if at < len(CONTENTS) else str(at)]
            if name == "open" and owner is canvas:  # other rows and columns have no open position
                static.zero_()
            view = static[tuple(map(slice, value.shape))]
            view.copy_(value)
            setattr(owner, name, view)
        self._home = [getattr(*at) for at in places]
        canvas.bind()
        if left is not None:
            left()
        return memory

    def _take_memory(self, size: tuple[Any, ...]) -> None:
        def make() -> dict[str, Tensor]:
            with torch.inference_mode(False):
                made = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in size]
                replays = torch.zeros((), dtype=torch.int64, device=made[0].device)
            names = (*CONTENTS, *map(str, range(len(CONTENTS), len(size))))
            return dict(zip(names, made, strict=True)) | {"replays": replays}

        memories = self.graphs.memories
        self.memory = memories.acquire(size, make)
        self.memory.tensors["replays"].zero_()
        self.memory.replays = 0
        self._release = finalizer = weakref.finalize(self, memories.release, self.memory)
        finalizer.atexit = False


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns of a step's table."""

    width: int  # computed positions
    window: int
    counts: int

    @property
    def size(self) -> int:
        return self.width + 2 * self.window + 1 + self.counts

    def split(self, table: Any) -> tuple[Any, Any, Any, Any]:
        """Computed positions; wanted ones among them; positions of the block; valid slots, then the other numbers."""
        first, second = self.width + self.window, self.width + 2 * self.window
        return table[:, : self.width], table[:, self.width : first], table[:, first:second], table[:, second:]


class _Captured:
    """The function that is captured: it reads the table, changes the step's memory and returns the result."""

    def __init__(
        self,
        loop: Loop,
        run: Run,
        memory: StepMemory,
        visible: Any,
        layout: _Table,
        columns: list[np.ndarray],
    ) -> None:
        self.loop, self.run, self.tensors, self.visible, self.layout = loop, run, memory.tensors, visible, layout
        self.states = dict(loop.memory)
        self.kinds = [torch.from_numpy(array).dtype for array in columns]
        self.columns: list[DeviceColumn] = []

    @property
    def reads(self) -> tuple[int, ...]:
        """The columns that were read."""
        return tuple(at for at, column in enumerate(self.columns) if column.read)

    def __call__(self, table: Tensor) -> Tensor:
        try:
            with refused():
                return self._step(table)
        except (AttributeError, TypeError) as error:  # a stage treats a column as an array
            raise CaptureError(one_line(error)) from error

    def _step(self, table: Tensor) -> Tensor:
        loop, tensors = self.loop, self.tensors
        positions, want, window, rest = self.layout.split(table)
        positions, want, window = positions.contiguous(), want.contiguous(), window.contiguous()
        self.columns = [DeviceColumn(_of_integers(rest[:, 1 + at], kind)) for at, kind in enumerate(self.kinds)]
        forwards, clock, keys, *arrays = self.columns
        forwards.read = True
        canvas = DeviceCanvas(tensors, window, forwards.values + tensors["replays"], loop.canvas.mask_id)
        if loop.request.temperature:
            clock.read = keys.read = True
            canvas.keys = lambda at: keys_at(keys.values, clock.values + tensors["replays"], at)
        last = torch.where(positions < 0, canvas.tokens.shape[1] - 1, positions)
        tokens = canvas.tokens.gather(1, last)
        hidden = self.run(Plan(tokens, positions, positions, self.visible, rest[:, 0].contiguous(), want, narrow=True))
        assert loop.forward.tail is not None, "captured with it"
        logits, highest, *statistics = loop.forward.tail(hidden.logits())
        distribution = DenseDistribution(logits, known=Confidence(*statistics))
        evidence = Evidence(distribution, window, canvas.eligible, loop.request)
        inner = self._inner(canvas, highest.masked_fill(~canvas.eligible, 0).sum(), arrays)
        choice, proposal, _ = inner.choose(evidence)
        inner.with_distribution = ()  # it refers to the loop in a circle
        canvas.write(Update(choice.which, choice.tokens, proposal.score))
        self._keep_states(inner)
        tensors["replays"].add_(1)
        return canvas.packed(inner.forward.highest)

    def _inner(self, canvas: DeviceCanvas, highest: Tensor, arrays: list[DeviceColumn]) -> Any:
        """The loop over the tensors of the graph."""
        inner: Any = copy.copy(self.loop)
        inner.canvas, inner.distributions, inner.forward = canvas, [], SimpleNamespace(highest=highest)
        inner.memory = dict(self.states)
        own, rest = iter(self._own()), iter(arrays)
        for stage in _deciding(self.loop):
            if id(stage) in inner.memory:
                inner.memory[id(stage)] = _replaced(inner.memory[id(stage)], own, rest)
        inner.select_state = inner.state(inner.sampler.select)
        inner.with_distribution = (inner.changed_logits,) if inner.sampler.logits else ()
        return inner

    def _own(self) -> list[Tensor]:
        """The memory of the states of stages."""
        return [tensor for name, tensor in self.tensors.items() if name.isdigit()]

    def _keep_states(self, inner: Any) -> None:
        """Stores what the stages have put in place of their tensors."""
        states = [inner.memory.get(id(stage)) for stage in _deciding(inner)]
        values = [getattr(*at) for state in states for at in _places(state, Tensor)]
        for static, value in zip(self._own(), values, strict=True):
            if value is not static:
                static.copy_(value)


def _places(state: Any, kind: type) -> Iterator[tuple[Any, str]]:
    """The object and the name of each attribute of this kind in a state, a dataclass or None."""
    for field in fields(state) if is_dataclass(state) else ():
        value = getattr(state, field.name)
        if isinstance(value, kind):
            yield state, field.name
        else:
            yield from _places(value, kind)


def _replaced(state: Any, tensors: Iterator[Tensor], columns: Iterator[DeviceColumn]) -> Any:
    """The state with each tensor replaced by the next of `tensors`, and each array by the next of `columns`."""
    if isinstance(state, Tensor | np.ndarray):
        return next(tensors) if isinstance(state, Tensor) else next(columns)
    if not is_dataclass(state) or isinstance(state, type):
        return state
    return replace(state, **{f.name: _replaced(getattr(state, f.name), tensors, columns) for f in fields(state)})


def _as_integers(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64).view(np.int64) if values.dtype.kind == "f" else values


def _of_integers(column: Tensor, kind: torch.dtype) -> Tensor:
    """The values of a column [R] of the table that has an array of this type."""
    return (column.contiguous().view(torch.float64) if kind.is_floating_point else column).to(kind)
