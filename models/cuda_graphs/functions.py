"""Functions of tensors, captured as CUDA graphs where calls of the same shapes come again.

A decoder's forwards are captured by the `runner`, which knows plans and caches. This is for what else is computed many
times in a row: the transitions of a diffusion head, blocks over a canvas, a step of a loop. A function reads its
arguments, and memory that neither moves nor is replaced, such as weights; it returns tensors, and may write to static
memory. It reads nothing on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .capture import Capturer
from .kept_graphs import KeptGraphs

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
