"""Modules whose weights come from a file: made on the meta device, where they take no memory and no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def empty_weights() -> Iterator[None]:
    """Modules made inside have weights on the meta device, which are not initialised.

    `torch.device("meta")` alone runs the initialisation, and `torch.nn.init.normal_` of such a tensor, as of every
    embedding, imports PyTorch's compiler and Triton: 150 MB and more than a second (PyTorch 2.13.0).
    """
    with torch.device("meta"), _NoInitialisation():
        yield


class _NoInitialisation(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **named)
