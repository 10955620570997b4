"""A capturer for machines without a GPU that is as strict as CUDA graphs: it replays only tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pardec.models.cuda_graphs.capture import CaptureError, Step
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.decoder import Decoder
from pardec.models.model import LanguageModel

_TO_HOST = ("numpy", "tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class NoHost(TorchFunctionMode):
    """Refuses operations that copy values to the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _TO_HOST:
            raise CaptureError(f"{func.__name__} needs the host")
        return func(*args, **(kwargs or {}))


class NoValues(TorchDispatchMode):
    """Refuses operations that wait for values: those that return them, and those whose shapes depend on them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _BY_VALUE & set(func.tags) and not _by_numbers(func, args):
            raise CaptureError(f"{func} depends on values")
        return func(*args, **(kwargs or {}))


def _by_numbers(func: Any, args: Any) -> bool:
    """Whether this is indexing by numbers, not by masks: the shape of the result is known."""
    if func.overloadpacket is not torch.ops.aten.index:
        return False
    return all(index is None or index.dtype == torch.int64 for index in args[1])


class Traced:
    """Traces a step into operations on the memory of the capture, and replays them.

    Like a CUDA graph, it refuses values that go to the host, and shapes that depend on values. It also refuses memory
    that is neither an input nor in `known`, since nothing keeps such memory in place.
    """

    def __init__(self, known: Callable[[], list[Tensor]]) -> None:
        self._known = known
        self.programs: list[Any] = []

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        with NoHost(), NoValues():
            step()
        program = make_fx(lambda *_: step())(*inputs)
        places = {tensor.untyped_storage().data_ptr() for tensor in self._known()}
        for node in program.graph.nodes:
            if node.op == "get_attr":
                held = getattr(program, node.target)
                if held.dim() and held.untyped_storage().data_ptr() not in places:
                    raise CaptureError(f"{node.target} {list(held.shape)} was made on the host")
        self.programs.append(program)
        outputs = tuple(torch.empty_like(made) for made in program(*inputs))

        def run() -> None:
            for output, made in zip(outputs, program(*inputs), strict=True):
                output.copy_(made)

        return run, outputs


def captured(model: LanguageModel) -> LanguageModel:
    """The model with its forwards captured; `decoder` is a `GraphRunner`."""
    stack = model.decoder
    assert isinstance(stack, Decoder)
    return replace(model, decoder=GraphRunner(stack, Traced(lambda: [*stack.parameters(), *stack.rope.tables()])))
