"""Forwards of a fixed shape, captured once as CUDA graphs and replayed.

A forward of a small batch launches hundreds of kernels, and launching them costs the host more than a GPU takes to run
them. A shape that comes again is captured: the plan's tensors are copied into static ones, and all kernels are launched
at once. What only the host knows (`uniform`, `span`) is part of the shape where it stays the same from step to step:
without a cache, and for queries that see a whole canvas which fills its cache, once there were some forwards over it.
There attention needs no mask, and the fastest kernels take it. Elsewhere a captured forward reads a power of two of
slots, enough for the length that the host knows (the whole capacity where it knows none), and learns from `lengths`
which of them are valid.

A shape is captured when it comes for the second time; what comes once, such as a prompt, never is. Wide forwards keep a
GPU busy as they are. Rows and, in narrow forwards, queries are rounded up to few sizes, with padding in the scratch
slot: reading the weights is most of what such a forward costs, and a batch that shrinks or drafts of uneven lengths
need few graphs. The head is part of a graph where the plan says what is to be computed of its logits (`Plan.tail`);
elsewhere the number of its rows differs from step to step, and it is two kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..decoder import Decoder
from ..plan import Hidden, Plan, Visible
from .capture import Capturer
from .functions import WIDEST, KeptGraphs, Key
from .static_cache import SLOTS, StaticCache, Stores
from .steps import ForwardShape, Run, Step, StepGraph, StepMemories, StepMemory

_MOST = 48  # limit of graphs; the least recently used one is dropped
_LASTING = 16  # after this many forwards over a canvas of one length, graphs are made for exactly it
_CANVASES = 1024  # limit of canvases that are counted
_WIDEST = WIDEST

_NARROW = 16  # widths up to this are rounded up, as for trees; wider windows have few widths

# Values that pad a plan: queries without a position, stored in the scratch slot, that see no slot.
_BLANK = {"positions": -1, "slots": -1, "want": -1, "parents": -1}
_BY_QUERY = ("tokens", "positions", "slots", "soft", "want", "parents", "dense")  # tensors [B, Q, ...]

# Slots that a captured forward reads, None for all; and its `uniform` and `span`, where these are fixed.
_Known = tuple[int | None, int | None, tuple[int, int] | None]


@dataclass(slots=True)
class _Graph:
    """One captured forward."""

    inputs: dict[str, Tensor]  # the static inputs, by the names of `_tensors`
    replay: Callable[[], Any]
    outputs: tuple[Tensor, ...]  # states, taps, what `Plan.tail` made
    hidden: Hidden  # what the captured forward returned: its head, its taps' layers
    memory: Any  # tensors that must live as long as the graph

    def __call__(self, plan: Plan) -> Hidden:
        for name, tensor in _tensors(plan).items():
            target = self.inputs[name]
            if target.shape != tensor.shape:
                target.fill_(_BLANK.get(name, 0))
                target = target[tuple(map(slice, tensor.shape))]
            target.copy_(tensor)
        self.replay()
        width = plan.want.shape[1] if self.hidden.narrowed else plan.width
        states = self.outputs[0][: plan.batch, :width].clone()
        count = 1 + len(self.hidden.taps)
        tapped = (output[: plan.batch, : plan.width].clone() for output in self.outputs[1:count])
        taps = dict(zip(self.hidden.taps, tapped, strict=True))
        made = tuple(output[: plan.batch, : plan.want.shape[1]].clone() for output in self.outputs[count:])
        return replace(self.hidden, plan=plan, states=states, taps=taps, made=made)


class GraphRunner:
    """The native stack with its fixed-shape forwards captured; other attributes are the stack's own.

    Attributes:
        stack: the native stack.
        automatic: whether graphs are used where they can be, and were not asked for by name.
        counts: forwards by how they ran: "recorded" (captured, then replayed), "replayed", or without a graph, by
            the reason. A forward within a captured step is not among them.
        step_counts: the same of the loops' whole steps.
        whole_steps: whether loops may capture whole steps; False captures forwards alone.
        memories: the memory of captured steps.
        lock: held while a graph is made, and from filling a step's table until its result is on the way to the host.
    """

    def __init__(self, stack: Decoder, capturer: Capturer, *, automatic: bool = False) -> None:
        self.stack, self.automatic = stack, automatic
        self._kept: KeptGraphs[_Graph] = KeptGraphs()
        self._steps: KeptGraphs[StepGraph] = KeptGraphs("steps")
        self.counts, self.step_counts = self._kept.counts, self._steps.counts
        self.whole_steps = True
        self.memories = StepMemories(self._forget_memory)
        self._capturer = capturer
        self._stores = Stores(stack.new_cache, store_size, self._forget)
        self._canvases: Counter[tuple[int, ...]] = Counter()  # forwards over canvases by their store, length and width
        self.lock = Lock()  # threads use the static tensors in turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)

    @property
    def embedding(self) -> Tensor:
        """The input embeddings [V, E]."""
        return self.stack.embedding

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of at least `capacity` slots, in memory that outlives it."""
        return StaticCache(self._stores, batch, capacity)

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Run `plan`, as the stack does."""
        if plan.visible.before:
            plan = replace(plan, visible=plan.visible.from_first_slot())
        with self.lock:
            known = self._known(plan.width, plan.uniform, plan.span, plan.visible, cache)
            key = self._key(plan, cache, known)
            make = partial(self._capture, plan, cache, known)
            graph = self._kept.get(key, partial(self._unsuited, plan, cache), make, most=_MOST)
            return self.stack(plan, cache) if graph is None else graph(plan)

    def step(
        self,
        key: Key,
        shape: ForwardShape,
        cache: KVCache | None,
        memory: StepMemory,
        make: Callable[[Run], Step],
        table: Callable[[], Tensor],
    ) -> StepGraph | None:
        """The graph of a loop's whole step; None where it has to run without one. Called under `lock`.

        `make(run)` makes the step, which gets its forward's result from `run`. It reads a `table` and the `memory`,
        which it changes; capturing does not. `key` is everything else that the step depends on.
        """
        known = self._known(shape.width, shape.uniform, shape.span, shape.visible, cache)
        visible = shape.visible.kind, shape.visible.block
        whole = (self._store(cache), memory.number, known, visible, shape.rows, shape.width, self._version, *key)
        unsuited = partial(self._unsuited_cache, cache, shape.rows * shape.width)
        capture = partial(self._capture_step, shape, cache, known, memory, make, table)
        return self._steps.get(whole, unsuited, capture, most=_MOST)

    def describe(self) -> str:
        """How forwards, and the loops' whole steps, have run so far, in one line."""
        return f"{self._kept.describe()}; {self._steps.describe()}" if self.step_counts else self._kept.describe()

    def captures(self, queries: int) -> bool:
        """Whether forwards with this number of queries, over all rows, are captured."""
        return queries <= _WIDEST

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that graphs hold, and caches between two requests."""
        return getattr(self._capturer, "nbytes", 0) + self._stores.nbytes + self.memories.nbytes

    @property
    def _version(self) -> int:
        """The version of the weights, whose memory a graph reads."""
        return getattr(self.stack, "weights_version", 0)

    @staticmethod
    def _store(cache: KVCache | None) -> int:
        return cache.store.number if isinstance(cache, StaticCache) else 0

    def _unsuited(self, plan: Plan, cache: KVCache | None) -> str | None:
        """Why a plan cannot be captured, or is not worth capturing; otherwise None."""
        if (reason := self._unsuited_cache(cache, plan.tokens.numel())) is not None:
            return reason
        if plan.attention or plan.queries:
            return "attention is kept" if plan.attention else "queries are kept"
        return None

    def _unsuited_cache(self, cache: KVCache | None, queries: int) -> str | None:
        if cache is not None and not isinstance(cache, StaticCache):
            return "a cache of others"
        if torch.is_grad_enabled():
            return "gradients are on"
        return None if self.captures(queries) else f"more than {_WIDEST} queries"

    def _known(
        self, width: int, length: int | None, span: tuple[int, int] | None, visible: Visible, cache: KVCache | None
    ) -> _Known:
        """The values of the host that a graph of this forward may fix, since later forwards repeat them."""
        if length is None:
            return None, None, None
        if cache is None:
            whole = rounded_width(width, visible) == width == length
            return None, length if whole else None, span if whole and span == (0, length) else None
        if not isinstance(cache, StaticCache):
            return None, None, None
        if visible.kind == "bidirectional" and length == cache.capacity:
            canvas = cache.store.number, length, width
            if len(self._canvases) >= _CANVASES:
                self._canvases.clear()
            self._canvases[canvas] += 1
            if self._canvases[canvas] > _LASTING:
                return length, length, None
        slots = max(SLOTS, 1 << (length - 1).bit_length())
        return slots if slots < cache.store.size[1] else None, None, None

    def _key(self, plan: Plan, cache: KVCache | None, known: _Known) -> Key:
        """The properties of a forward that capturing fixes."""
        layers = None if plan.layers is None else (plan.layers.start, plan.layers.stop, plan.layers.step)
        shapes = tuple((name, tensor.dtype, _shape(plan, name, tensor)) for name, tensor in _tensors(plan).items())
        visible = plan.visible.kind, plan.visible.block
        what = plan.skip, plan.parallel, plan.hidden, plan.attention, plan.queries, plan.narrow, plan.tail
        return self._store(cache), known, visible, layers, *what, shapes, self._version

    def _capture(self, plan: Plan, cache: KVCache | None, known: _Known) -> _Graph:
        # Not in inference mode: static tensors are written later, in any mode.
        with torch.inference_mode(False), torch.no_grad():
            inputs = {
                name: tensor.new_full(_shape(plan, name, tensor), _BLANK.get(name, 0))
                for name, tensor in _tensors(plan).items()
            }
            slots, uniform, span = known
            fixed = _fixed(plan, inputs, uniform, span)
            static = None
            if isinstance(cache, StaticCache):
                static = cache.first_rows(cache.store.size[0] if plan.rows is not None else fixed.batch, slots)
            results: list[Hidden] = []

            def step() -> tuple[Tensor, ...]:
                results.append(hidden := self.stack(fixed, static))
                made = () if fixed.tail is None else fixed.tail(hidden.logits())
                return hidden.states, *hidden.taps.values(), *made

            memory = () if static is None else (*static.k, *static.v)
            replay, outputs = self._capturer.capture(step, (*inputs.values(), *memory))
        hidden = replace(results[0], plan=plan, states=outputs[0])
        return _Graph(inputs, replay, outputs, hidden, (memory, self.stack.tables()))

    def _capture_step(
        self,
        shape: ForwardShape,
        cache: KVCache | None,
        known: _Known,
        memory: StepMemory,
        make: Callable[[Run], Step],
        table: Callable[[], Tensor],
    ) -> StepGraph:
        with torch.inference_mode(False), torch.no_grad():
            slots, uniform, span = known
            static = cache.first_rows(shape.rows, slots) if isinstance(cache, StaticCache) else None

            def run(plan: Plan) -> Hidden:
                hidden: Hidden = self.stack(replace(plan, uniform=uniform, span=span, fixed=True), static)
                return hidden

            inputs, step, own = table(), make(run), tuple(memory.tensors.values())
            slots_of = () if static is None else (*static.k, *static.v)
            before = [tensor.clone() for tensor in own]
            try:
                replay, (result,) = self._capturer.capture(lambda: (step(inputs),), (inputs, *own, *slots_of))
            finally:  # the step ran while it was captured
                for tensor, value in zip(own, before, strict=True):
                    tensor.copy_(value)
        return StepGraph(inputs, replay, result, tuple(step.reads), (own, slots_of, self.stack.tables()))

    def _forget(self, number: int) -> None:
        """Drops the graphs that were captured on this store. Not under `lock`."""
        with self.lock:
            for kept in (self._kept, self._steps):
                kept.drop(lambda key: key[0] == number)

    def _forget_memory(self, number: int) -> None:
        with self.lock:
            self._steps.drop(lambda key: key[1] == number)


def runner(stack: object) -> GraphRunner | None:
    """The graph runner of a stack, also inside a wrapper; None if its forwards are not captured."""
    inner = getattr(stack, "base", stack)
    return inner if isinstance(inner, GraphRunner) else None


def plain_decoder(stack: object) -> Decoder | None:
    """The native stack, to run without graphs; None for other stacks, and if graphs were requested explicitly."""
    graphs = runner(stack)
    return native(stack) if graphs is None or graphs.automatic else None


def native(stack: object) -> Decoder | None:
    """The native stack, with or without graphs; None for other stacks."""
    inner = stack.stack if isinstance(stack, GraphRunner) else stack
    return inner if isinstance(inner, Decoder) else None


def rounded(count: int) -> int:
    """`count` rounded up to 1, 2, 4, 8 or a multiple of 8.

    >>> [rounded(count) for count in (1, 3, 8, 9, 40)]
    [1, 4, 8, 16, 40]
    """
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8


def store_size(rows: int, slots: int) -> tuple[int, int]:
    """The rows and slots that the memory of a captured cache gets, for a request of this size.

    >>> store_size(3, 200)
    (4, 256)
    """
    return rounded(rows), -(-slots // SLOTS) * SLOTS


def _shape(plan: Plan, name: str, tensor: Tensor) -> tuple[int, ...]:
    """The shape of the static tensor for this tensor of a plan."""
    shape = list(tensor.shape)
    every = name == "parents" and len(shape) == 1  # shared by all rows
    if name in _BY_QUERY and _rounds(plan.width, plan.visible):
        shape[not every] = rounded(shape[not every])
    return tuple(shape) if every else (rounded(shape[0]), *shape[1:])


def rounded_width(width: int, visible: Visible) -> int:
    """The queries per row of a captured forward that has at least `width` of them."""
    return rounded(width) if _rounds(width, visible) else width


def _rounds(width: int, visible: Visible) -> bool:
    return width <= _NARROW or visible.parents is not None


def _tensors(plan: Plan) -> dict[str, Tensor]:
    """The tensors of a plan and its `Visible` by name; `want` only if the forward computes something for it alone."""
    values = {field.name: getattr(part, field.name) for part in (plan, plan.visible) for field in fields(part)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) and (name != "want" or plan.narrow or plan.tail is not None)
    }


def _fixed(plan: Plan, inputs: dict[str, Tensor], uniform: int | None, span: tuple[int, int] | None) -> Plan:
    """The plan over these tensors; of the host's knowledge only `uniform` and `span` remain."""
    names = {field.name for field in fields(Visible)}
    visible: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name in names}
    own: dict[str, Any] = {"want": inputs["positions"][:, :1]}
    own |= {name: tensor for name, tensor in inputs.items() if name not in names}
    own |= {"uniform": uniform, "span": span, "stored": None}
    return replace(plan, **own, visible=replace(plan.visible, **visible), fixed=True)
