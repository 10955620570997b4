"""Forwards of a fixed shape, recorded once and run again without the host.

A forward of a small batch starts hundreds of kernels, and starting them costs the host more than a GPU takes to run
them. One that comes again with other numbers in the same shapes is recorded: what differs is copied into tensors that
stay where they are, and all kernels are started at once. So a plan is stripped of what only the host knows (`uniform`,
`span`): a recorded forward looks over the whole capacity of its cache and learns from `lengths` what of it is valid.

A shape is recorded when it comes for the second time; what comes once, such as a prompt, never is. Wide forwards keep a
GPU busy as they are. Rows and, in narrow forwards, queries are rounded up to few sizes with padding that is stored in
the bin: reading the weights is most of what such a forward costs, and a batch that shrinks or drafts of uneven lengths
do with few recordings. The head is not part of one: how many rows it sees differs from step to step, and it is two
kernels.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..decoder import Decoder
from ..hidden import Hidden
from ..kv_cache import KVCache
from ..plan import Plan, Visible
from .capture import Recorder, Refused
from .static_cache import StaticCache, Stores

_KEPT = 48  # recorded forwards; the one that was not used for longest leaves
_SEEN = 1024  # shapes remembered
_WIDEST = 2048  # queries of all rows, above which the device is busy for longer than the host

_NARROW = 16  # queries of a row, up to which they are rounded up, like those of trees; wider windows are of few widths

# What pads a plan: queries of no position that are stored in the bin and see nothing.
_BLANK = {"positions": -1, "slots": -1, "want": -1, "parents": -1}
_BY_QUERY = ("tokens", "positions", "slots", "soft", "want", "parents", "dense")  # tensors [B, Q, ...]

_Key = tuple[Hashable, ...]


@dataclass(slots=True)
class _Recorded:
    """One recorded forward."""

    inputs: dict[str, Tensor]  # as `_parts` names them
    run: Callable[[], Any]
    outputs: tuple[Tensor, ...]  # states, then taps
    made: Hidden  # of the recording: its head, its kind
    held: Any  # what has to live as long

    def __call__(self, plan: Plan) -> Hidden:
        for name, tensor in _parts(plan).items():
            taking = self.inputs[name]
            if taking.shape != tensor.shape:
                taking.fill_(_BLANK.get(name, 0))
                taking = taking[tuple(map(slice, tensor.shape))]
            taking.copy_(tensor)
        self.run()
        width = plan.want.shape[1] if self.made.narrowed else plan.width
        states = self.outputs[0][: plan.batch, :width].clone()
        taps = (output[: plan.batch, : plan.width].clone() for output in self.outputs[1:])
        return replace(self.made, plan=plan, states=states, taps=dict(zip(self.made.taps, taps, strict=True)))


class GraphRunner:
    """The native stack, its fixed-shape forwards recorded; what else is asked of it, the stack itself says.

    Attributes:
        stack: what is recorded.
        counts: forwards by how they ran: "recorded" (and run for the first time), "replayed", or as they would without,
            by the reason.
    """

    def __init__(self, stack: Decoder, recorder: Recorder) -> None:
        self.stack = stack
        self.counts: Counter[str] = Counter()
        self._recorder = recorder
        self._stores = Stores(stack.new_cache, rounded, self._forget)
        self._recorded: OrderedDict[_Key, _Recorded] = OrderedDict()
        self._refused: dict[_Key, str] = {}
        self._seen: set[_Key] = set()
        self._lock = Lock()  # of the tensors that stay: threads take turns

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
        with self._lock:
            key = self._key(plan, cache)
            recorded, why = self._find(key, plan, cache)
            self.counts[why] += 1
            return self.stack(plan, cache) if recorded is None else recorded(plan)

    def describe(self) -> str:
        """How the forwards so far have run, in one line."""
        said = ", ".join(f"{count} {how}" for how, count in self.counts.most_common())
        return f"forwards: {said or 'none'}; {len(self._recorded)} shapes kept"

    def _find(self, key: _Key, plan: Plan, cache: KVCache | None) -> tuple[_Recorded | None, str]:
        """The recorded forward of this shape, and how it came; None and why there is none."""
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return self._recorded[key], "replayed"
        if (why := self._unsuited(plan, cache) or self._refused.get(key)) is not None:
            return None, why
        if key not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
                self._refused.clear()
            self._seen.add(key)
            return None, "the first of its shape"
        try:
            recorded = self._record(plan, cache)
        except Refused as error:
            self._refused[key] = f"refused: {error}"
            return None, self._refused[key]
        self._recorded[key] = recorded
        if len(self._recorded) > _KEPT:
            self._recorded.popitem(last=False)
        return recorded, "recorded"

    def _unsuited(self, plan: Plan, cache: KVCache | None) -> str | None:
        """Why a plan is not worth recording, or cannot be."""
        if cache is not None and not isinstance(cache, StaticCache):
            return "a cache of others"
        if torch.is_grad_enabled():
            return "gradients are on"
        if plan.tokens.numel() > _WIDEST:
            return f"more than {_WIDEST} queries"
        return None

    def _key(self, plan: Plan, cache: KVCache | None) -> _Key:
        """What a recorded forward fixes."""
        number = cache.store.number if isinstance(cache, StaticCache) else 0
        layers = None if plan.layers is None else (plan.layers.start, plan.layers.stop, plan.layers.step)
        shapes = tuple((name, tensor.dtype, _shape(plan, name, tensor)) for name, tensor in _parts(plan).items())
        visible = plan.visible.kind, plan.visible.block
        return number, visible, layers, plan.skip, plan.hidden, plan.narrow, shapes

    def _record(self, plan: Plan, cache: KVCache | None) -> _Recorded:
        # Not in inference mode: what stays is written in later, by whoever comes.
        with torch.inference_mode(False), torch.no_grad():
            inputs = {
                name: tensor.new_full(_shape(plan, name, tensor), _BLANK.get(name, 0))
                for name, tensor in _parts(plan).items()
            }
            fixed = _fixed(plan, inputs)
            room = None
            if isinstance(cache, StaticCache):
                room = cache.over(cache.store.size[0] if plan.rows is not None else fixed.batch)
            made: list[Hidden] = []

            def step() -> tuple[Tensor, ...]:
                made.append(self.stack(fixed, room))
                return made[-1].states, *made[-1].taps.values()

            held = () if room is None else (*room.k, *room.v)
            run, outputs = self._recorder.record(step, (*inputs.values(), *held))
        first = replace(made[0], plan=plan, states=outputs[0])
        return _Recorded(inputs, run, outputs, first, (held, self.stack.rope.held()))

    def _forget(self, number: int) -> None:
        """Nothing that was recorded on this store can run again."""
        with self._lock:
            for key in [key for key in self._recorded if key[0] == number]:
                del self._recorded[key]


def native(stack: object) -> Decoder | None:
    """The native stack, its forwards recorded or not; None of others."""
    inner = stack.stack if isinstance(stack, GraphRunner) else stack
    return inner if isinstance(inner, Decoder) else None


def rounded(count: int) -> int:
    """1, 2, 4, 8, then multiples of 8.

    >>> [rounded(count) for count in (1, 3, 8, 9, 40)]
    [1, 4, 8, 16, 40]
    """
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8


def _shape(plan: Plan, name: str, tensor: Tensor) -> tuple[int, ...]:
    """Of what stands for this tensor of a plan in a recording."""
    shape = list(tensor.shape)
    every = name == "parents" and len(shape) == 1  # of all rows
    if name in _BY_QUERY and (plan.width <= _NARROW or plan.visible.parents is not None):
        shape[not every] = rounded(shape[not every])
    return tuple(shape) if every else (rounded(shape[0]), *shape[1:])


def _parts(plan: Plan) -> dict[str, Tensor]:
    """The tensors of a plan and of what it sees, by their names; what is wanted is only asked where it narrows."""
    records = (plan, plan.visible)
    every = {field.name: getattr(record, field.name) for record in records for field in fields(record)}
    return {
        name: value for name, value in every.items() if isinstance(value, Tensor) and (name != "want" or plan.narrow)
    }


def _fixed(plan: Plan, inputs: dict[str, Tensor]) -> Plan:
    """The plan over these tensors, with nothing that only the host knows."""
    names = {field.name for field in fields(Visible)}
    seen: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name in names}
    own: dict[str, Any] = {"want": inputs["positions"][:, :1]}
    own |= {name: tensor for name, tensor in inputs.items() if name not in names}
    return replace(plan, **own, visible=replace(plan.visible, **seen), uniform=None, span=None, fixed=True)
