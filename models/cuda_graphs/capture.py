"""Captures a step of fixed shape as a CUDA graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..errors import ArgumentError, one_line

GraphsArgument = bool | Literal["auto"]
Step = Callable[[], tuple[Tensor, ...]]  # reads and writes memory at fixed addresses


class CaptureError(Exception):
    """A step cannot be captured: it needs the host, or makes tensors whose shapes depend on values."""


class Capturer(Protocol):
    """Captures steps."""

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        """A function that replays `step` on the current contents of `inputs`, and the tensors that receive its results.

        The step may run several times while it is captured. Raises CaptureError.
        """
        ...


def use_graphs(asked: GraphsArgument, device: torch.device, name: str, **others: object) -> bool:
    """Whether forwards of the model `name` are captured: as asked, and with "auto" wherever they can be.

    `others` are the arguments of `load` with which they cannot, or are not known to be captured without a fault.
    Raises ArgumentError for True where there are no CUDA graphs, and for what is neither True, False nor "auto".
    """
    if asked == "auto":
        return device.type == "cuda" and not any(others.values())
    if not isinstance(asked, bool):
        raise ArgumentError(f"cuda_graphs={asked!r} is unknown", 'use "auto", True or False')
    if asked and device.type != "cuda":
        raise ArgumentError(
            f"cuda_graphs needs a CUDA device, and {name} would run on {device}", "leave cuda_graphs out"
        )
    return asked


class Graphs:
    """CUDA graphs in one memory pool: the results of a step have to be copied before another one is replayed."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._pool: Any = None
        self._grown = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the pool: temporary tensors of the widest graph, and the results of all."""
        return self._grown if self._live else 0

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        """Captures on the device of `inputs`, after a warm-up on a separate stream, as PyTorch requires."""
        device = inputs[0].device
        if not self._live:  # the pool died with the last graph in it
            self._pool, self._grown = torch.cuda.graph_pool_handle(), 0
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(device):
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    step()
                torch.cuda.current_stream().wait_stream(stream)
                before = torch.cuda.memory_reserved(device)
                # Work of other threads on the device is not part of this graph.
                with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                    outputs = step()
                self._grown += torch.cuda.memory_reserved(device) - before
        except RuntimeError as error:
            raise CaptureError(one_line(error)) from error
        self._live.add(graph)
        return graph.replay, outputs
