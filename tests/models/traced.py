"""A capturer for machines without a GPU that is as strict as CUDA graphs: it replays only tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pardec.models.cuda_graphs.capture import CaptureError, Step
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.model import LanguageModel

_TO_HOST = ("numpy", "tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class NoHost(TorchFunctionMode):
    """Refuses operations that copy values to the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _TO_HOST:
            raise CaptureError(f"{func.__name__} needs the host")
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Records the operations of a step as lines of Python; refuses those whose results or shapes are values.

    A tensor that an operation makes is a variable of later lines. Others are memory that exists.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, list[str]]] = []  # functions with their arguments
        self.memory: list[Tensor] = []
        self._lines: list[str] = []
        self._constants: list[Any] = []
        self._variables: dict[int, str] = {}  # by id of a tensor
        self._alive: list[Any] = []  # so that no id is used again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _BY_VALUE & set(func.tags) and not _by_numbers(func, args):
            raise CaptureError(f"{func} depends on values")
        named = kwargs or {}
        given = [*map(self._text, args), *(f"{name}={self._text(value)}" for name, value in named.items())]
        made = func(*args, **named)
        self.operations.append((func, given))
        self._lines.append(f"{self._targets(made)} = functions[{len(self._lines)}]({', '.join(given)})")
        self._alive += (args, named, made)
        return made

    def _text(self, value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, Tensor):
            if id(value) in self._variables:
                return self._variables[id(value)]
            self.memory.append(value)
        self._constants.append(value)
        return f"constants[{len(self._constants) - 1}]"

    def _targets(self, made: Any) -> str:
        if isinstance(made, (list, tuple)):
            return f"[{', '.join(map(self._targets, made))}]"
        if not isinstance(made, Tensor):
            return "_"
        return self._variables.setdefault(id(made), f"v{len(self._variables)}")

    def replay(self, results: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """A function that runs the operations again and returns what they now make in place of `results`."""
        lines = [*self._lines, f"return {self._text(results)}"]
        self._alive.clear()
        names: dict[str, Any] = {"functions": [func for func, _ in self.operations], "constants": self._constants}
        exec("def run():\n    " + "\n    ".join(lines), names)
        run: Callable[[], list[Tensor]] = names["run"]
        return run


def _by_numbers(func: Any, args: Any) -> bool:
    """Whether this is indexing by numbers, not by masks: the shape of the result is known."""
    if func.overloadpacket is not torch.ops.aten.index:
        return False
    return all(index is None or index.dtype == torch.int64 for index in args[1])


class Traced:
    """Records the operations of a step on the memory of the capture, and replays them.

    Like a CUDA graph, it refuses values that go to the host, and shapes that depend on values. It also refuses memory
    that is neither an input nor in `known`, since nothing keeps such memory in place.
    """

    def __init__(self, known: Callable[[], list[Tensor]]) -> None:
        self._known = known
        self.programs: list[Recorder] = []

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        with NoHost(), Recorder() as program:
            results = step()
        given = {id(tensor) for tensor in inputs}
        places = {tensor.untyped_storage().data_ptr() for tensor in self._known()}
        for held in program.memory:
            if held.dim() and id(held) not in given and held.untyped_storage().data_ptr() not in places:
                raise CaptureError(f"a tensor {list(held.shape)} was made on the host")
        self.programs.append(program)
        outputs, again = tuple(map(torch.empty_like, results)), program.replay(results)

        def run() -> None:
            for output, made in zip(outputs, again(), strict=True):
                output.copy_(made)

        return run, outputs


def captured(model: LanguageModel) -> LanguageModel:
    """The model with its forwards captured; `decoder` is a `GraphRunner`."""
    stack = model.decoder
    return replace(model, decoder=GraphRunner(stack, Traced(lambda: [*stack.parameters(), *stack.rope.tables()])))
