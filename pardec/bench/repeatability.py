"""Compares the bits of two runs of a request, and the kernels' logits with those of their definitions in PyTorch.

Tokens are chaotic: a near tie that rounds the other way changes all tokens after it, and says neither whether a kernel
is wrong nor whether it varies. So each layer's states and the logits of every forward leave a checksum, and two runs
are compared by them: the first that differs names the step and the layer. And every forward is computed a second time
by the definitions, on the same tokens and the same cache (teacher forcing), where logits may differ by rounding only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.cuda_graphs.runner import native
from pardec.models.cuda_graphs.static_cache import StaticCache
from pardec.models.kernels.variable import VARIABLE
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.models.stack import Stack

from ..drivers import driver_of
from ..requests.call import Call
from .clock import Clock
from .parts import TIMED

TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # norm of the difference over the norm
_COMPARED = 128  # positions of a forward
_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(values: Tensor) -> Tensor:
    """One int64 of all bits; sums of integers do not depend on their order."""
    bits = values.contiguous().view(_INTEGER[values.element_size()]).flatten().long()
    return (bits * (torch.arange(bits.numel(), device=bits.device) % 65_521 + 1)).sum()


@dataclass(eq=False)
class WatchedStack:
    """A stack whose layers and head leave checksums; every other attribute is the stack's own."""

    stack: Any
    sums: list[Tensor] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # (step, layer) of each; the head is after the last
    step: int = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        self.step += 1
        count = self.stack.config.layers
        chosen = range(count) if plan.layers is None else range(count)[plan.layers]
        taps = tuple(sorted({*plan.hidden, *chosen[:-1]}))
        hidden: Hidden = self.stack(replace(plan, hidden=taps), cache)
        for layer in chosen[:-1]:
            self._add(layer, hidden.taps[layer])
        if chosen:
            self._add(chosen[-1], hidden.states)
        head = hidden.head

        def watched(states: Tensor) -> Tensor:
            logits: Tensor = head(states)
            self._add(count, logits)
            return logits

        return replace(hidden, head=watched)

    def _add(self, layer: int, values: Tensor) -> None:
        self.places.append((self.step, layer))
        self.sums.append(checksum(values))


@dataclass(eq=False)
class ComparedStack:
    """A stack that also runs each forward with the kernels' definitions and compares the logits; see `WatchedStack`."""

    stack: Any
    furthest: float = 0.0
    place: int | None = None  # the forward whose logits are furthest apart
    compared: int = 0
    step: int = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stack, name)

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        self.step += 1
        stack = native(self.stack)
        plain = cache is None or type(cache) in (KVCache, StaticCache)  # others keep more than a forward writes again
        expected = None
        if stack is not None and plain and plan.layers is None:
            with _definitions():
                expected = _some_logits(stack(plan, cache))
        hidden: Hidden = self.stack(plan, cache)
        if expected is not None:
            found = _some_logits(hidden)
            apart = float((found - expected).norm() / expected.norm().clamp(min=1e-12))
            self.compared += 1
            if not apart <= self.furthest:  # NaN is furthest
                self.furthest, self.place = apart, self.step
        return hidden


def _some_logits(hidden: Hidden) -> Tensor:
    """[N, V] float32: logits at the first positions that are no padding."""
    places = hidden.plan.want if hidden.narrowed else hidden.plan.positions
    rows = (places.flatten() >= 0).nonzero().flatten()[:_COMPARED]
    logits: Tensor = hidden.head(hidden.states.flatten(0, 1)[rows]).float()
    return logits


@contextmanager
def _definitions() -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "reference"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def repeats(network: LanguageModel, call: Call) -> dict[str, Any]:
    """Where two runs differ first, if they do: `first_step` and `first_layer`; the layer after the last is the head."""
    one, two = (_decoded(network, call, WatchedStack) for _ in range(2))
    length = min(len(one.sums), len(two.sums))
    sums = [torch.stack([each.cpu() for each in stack.sums[:length]]) for stack in (one, two)]
    different = (sums[0] != sums[1]).nonzero().flatten().tolist()
    found: dict[str, Any] = {"forwards": one.step + 1, "checksums": length, "different": len(different)}
    if different:
        found["first_step"], found["first_layer"] = one.places[different[0]]
    elif len(one.sums) != len(two.sums):
        found |= {"different": 1, "first_step": min(one.step, two.step), "first_layer": None}
    return found


def place(found: dict[str, Any]) -> str:
    """What `repeats` found, in words."""
    if not found["different"]:
        return f"equal in {found['checksums']} checksums of {found['forwards']} forwards"
    layer = "lengths differ" if found["first_layer"] is None else f"layer {found['first_layer']}"
    return f"step {found['first_step']}, {layer} is the first that differs"


def teacher_forced(network: LanguageModel, call: Call) -> dict[str, Any]:
    """The largest difference between the kernels' logits and the definitions' on equal inputs, and its forward."""
    stack = _decoded(network, call, ComparedStack)
    limit = TOLERANCE.get(network.dtype, TOLERANCE[torch.float32])
    figures = {"forwards": stack.compared, "furthest": stack.furthest, "tolerance": limit, "step": stack.place}
    return {**figures, "within": stack.furthest <= limit}


def _decoded(network: LanguageModel, call: Call, watch: Callable[[Stack], Any]) -> Any:
    """The stack that watched one decode."""
    stack = watch(network.decoder)
    TIMED[driver_of(network).family](replace(network, decoder=stack), call, Clock(network.device))
    return stack
