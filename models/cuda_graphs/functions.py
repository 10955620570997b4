"""Functions of tensors, captured as CUDA graphs where calls of the same shapes come again.

A decoder's forwards are captured by the `runner`, which knows plans and caches. This is for what else is computed many
times in a row: the transitions of a diffusion head, blocks over a canvas, a step of a loop. A function reads its
arguments, and memory that neither moves nor is replaced, such as weights; it returns tensors, and may write to static
memory. It reads nothing on the host.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from .capture import CaptureError, Capturer

WIDEST = 2048  # with more queries in all rows, the device takes longer than the host
_MOST = 64  # limit of graphs

Function = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _Graph:
    """One captured call."""

    inputs: list[Tensor]
    replay: Callable[[], Any]
    outputs: tuple[Tensor, ...]


class FunctionGraphs:
    """Calls functions, and replays graphs of those calls whose shapes come again."""

    def __init__(self, capturer: Capturer) -> None:
        self._capturer = capturer
        self._kept: KeptGraphs[_Graph] = KeptGraphs()
        self.counts, self.describe = self._kept.counts, self._kept.describe
        self._lock = Lock()  # threads use the static tensors in turn

    def __call__(
        self, name: Hashable, function: Function, inputs: Sequence[Tensor], *fixed: Hashable
    ) -> tuple[Tensor, ...]:
        """`function(*inputs)`. Calls of one `name` and `fixed` differ in nothing but their inputs."""
        with self._lock:
            key = name, fixed, tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in inputs)
            graph = self._kept.get(key, _unsuited, lambda: self._capture(function, inputs), most=_MOST)
            if graph is None:
                return function(*inputs)
            for kind in {tensor.dtype for tensor in inputs}:  # one kernel copies all tensors of a type
                targets, values = ([each for each in part if each.dtype == kind] for part in (graph.inputs, inputs))
                torch._foreach_copy_(targets, values)
            graph.replay()
            return tuple(output.clone() for output in graph.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the graphs hold."""
        inputs = sum(tensor.nbytes for graph in self._kept.graphs.values() for tensor in graph.inputs)
        return inputs + int(getattr(self._capturer, "nbytes", 0))

    def forget(self, name: Hashable) -> None:
        """Drops the graphs of a name."""
        with self._lock:
            self._kept.drop(lambda key: key[0] == name)

    def _capture(self, function: Function, inputs: Sequence[Tensor]) -> _Graph:
        # Not in inference mode: static tensors are written later, in any mode.
        with torch.inference_mode(False), torch.no_grad():
            static = [torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in inputs]
            torch._foreach_copy_(static, list(inputs))
            replay, outputs = self._capturer.capture(lambda: function(*static), static)
        return _Graph(static, replay, outputs)


@runtime_checkable
class Capturable(Protocol):
    """A part of a model with forwards that can be captured."""

    def capture(self, graphs: FunctionGraphs, make: Callable[[], Capturer]) -> None:
        """Captures forwards from now on, in `graphs`, or by a capturer that `make` makes."""
        ...


def _unsuited() -> str | None:
    return "gradients are on" if torch.is_grad_enabled() else None


Key = tuple[Hashable, ...]
Graph = TypeVar("Graph")

_SHAPES = 1024  # limit of remembered shapes that were seen once


class KeptGraphs(Generic[Graph]):
    """Graphs by key.

    Attributes:
        counts: calls by how they ran: "recorded" (captured, then replayed), "replayed", or without a graph, by the
            reason.
    """

    def __init__(self, what: str = "forwards") -> None:
        self.what = what
        self.counts: Counter[str] = Counter()
        self.graphs: OrderedDict[Key, Graph] = OrderedDict()
        self._refused: dict[Key, str] = {}
        self._shapes: set[Key] = set()

    def get(
        self, key: Key, unsuited: Callable[[], str | None], capture: Callable[[], Graph], *, most: int
    ) -> Graph | None:
        """The graph of this key; None where the call has to run without one. At most `most` graphs stay.

        `unsuited` says why no graph is made of a call, if so; `capture` makes one, or raises CaptureError.
        """
        graph, how = self._find(key, unsuited, capture)
        while len(self.graphs) > most:
            self.graphs.popitem(last=False)
        self.counts[how] += 1
        return graph

    def describe(self) -> str:
        """How the calls so far have run, in one line."""
        counts = ", ".join(f"{count} {how}" for how, count in self.counts.most_common())
        return f"{self.what}: {counts or 'none'}; {len(self.graphs)} shapes kept"

    def drop(self, stale: Callable[[Key], bool]) -> None:
        """Drops the graphs of these keys."""
        for key in [key for key in self.graphs if stale(key)]:
            del self.graphs[key]

    def _find(
        self, key: Key, unsuited: Callable[[], str | None], capture: Callable[[], Graph]
    ) -> tuple[Graph | None, str]:
        """The graph of this key and how it was found; None and the reason why there is none."""
        if (reason := unsuited() or self._refused.get(key)) is not None:
            return None, reason
        if key in self.graphs:
            self.graphs.move_to_end(key)
            return self.graphs[key], "replayed"
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
                self._refused.clear()
            self._shapes.add(key)
            return None, "the first of its shape"
        try:
            self.graphs[key] = capture()
        except CaptureError as error:
            self._refused[key] = f"refused: {error}"
            return None, self._refused[key]
        return self.graphs[key], "recorded"
