"""Entry b: compares two runs of one request bit by bit, and names the first step, layer and operation that differ.

Each operation of each layer writes a checksum of its result. All earlier checksums of two runs being equal, the
operation whose checksum differs first got the same inputs, except for keys and values in the cache, which earlier
operations wrote. In the second run every operation is run twice with the same inputs, so that one that varies by itself
is distinguished from one that reads what another one left behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import pardec
from gpu_runs.report import Report
from gpu_runs.shapes import MASKED, model
from pardec.bench.decode import prepare
from pardec.bench.repeatability import checksum
from pardec.models import decoder as decoder_module
from pardec.models.kernels.variable import VARIABLE
from pardec.models.layers import layer as layer_module
from pardec.samplers.events import Finished

CONTEXT, NEW, BLOCK = 448, 32, 32


@dataclass
class Recorder:
    """The checksums of a run, in order, each with its place: (step, layer, operation)."""

    twice: bool = False
    sums: list[Tensor] = field(default_factory=list)
    again: list[Tensor] = field(default_factory=list)  # results of the second call of each operation, with `twice`
    places: list[tuple[int, int, str]] = field(default_factory=list)
    step: int = -1
    layer: int = -1
    muted: bool = False

    def add(self, name: str, values: Tensor, repeated: Tensor | None = None) -> None:
        if self.muted:
            return
        self.places.append((self.step, self.layer, name))
        self.sums.append(checksum(values))
        self.again.append(self.sums[-1] if repeated is None else checksum(repeated))

    def recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `call` and records its result; of a tuple, the first tensor."""

        def wrapper(*arguments: Any, **more: Any) -> Any:
            copies = [_copied(argument) for argument in arguments] if self.twice else []  # some work in place
            result = call(*arguments, **more)
            repeated = None
            if self.twice and not self.muted:
                self.muted = True  # operations inside are recorded once
                repeated = call(*copies, **more)
                self.muted = False
            first = result[0] if isinstance(result, tuple) else result
            again = repeated[0] if isinstance(repeated, tuple) else repeated
            self.add(name, first, again)
            return result

        return wrapper

    @contextmanager
    def watching(self, stack: Any) -> Iterator[None]:
        """Records the operations of all layers, the head, and the tokens of each forward of `stack`."""
        entered, project = stack.forward, stack.project
        choose = decoder_module.choose_ops

        def forward(plan: Any, cache: Any = None) -> Any:
            self.step, self.layer = self.step + 1, -1
            self.add("tokens fed", plan.tokens)
            return entered(plan, cache)

        def at(index: int, run: Callable[..., Any]) -> Callable[..., Any]:
            def through(*arguments: Any, **more: Any) -> Any:
                self.layer = index
                return run(*arguments, **more)

            return through

        def chosen(*arguments: Any, **more: Any) -> Any:
            ops = choose(*arguments, **more)
            names = "norm", "rotary_and_cache", "glu"
            ops = replace(ops, **{name: self.recorded(name, getattr(ops, name)) for name in names})
            if ops.fused is None:
                return ops
            return replace(ops, fused=replace(ops.fused, add_norm=self.recorded("add_norm", ops.fused.add_norm)))

        def head(states: Tensor) -> Tensor:
            self.layer = len(stack.layers)
            return self.recorded("head", project)(states)

        names = ("matmul", "add_matmul", "add_matmul_into", "attend")
        with (
            patch.multiple(layer_module, **{name: self.recorded(name, getattr(layer_module, name)) for name in names}),
            patch.object(decoder_module, "choose_ops", chosen),
            patch.object(stack, "forward", forward),
            patch.object(stack, "project", head),
        ):
            layers = list(stack.layers)
            for index, layer in enumerate(layers):
                layer.forward = at(index, layer.forward)
            try:
                yield
            finally:
                for layer in layers:
                    del layer.forward


def _copied(argument: Any) -> Any:
    """A copy of a tensor that is not a weight."""
    return argument.clone() if isinstance(argument, Tensor) and not isinstance(argument, nn.Parameter) else argument


def record(loaded: pardec.Model, spec: str, *, twice: bool) -> tuple[Recorder, Any]:
    """Records the checksums of one decode; returns its tokens."""
    context, new = (CONTEXT, NEW) if loaded.network.device.type == "cuda" else (24, 8)
    call = prepare(loaded, spec, 1, context, new, min(BLOCK, new))
    recorder = Recorder(twice=twice)
    with recorder.watching(loaded.network.decoder):
        *_, last = loaded.run(call, steps=False)
    assert isinstance(last, Finished)
    return recorder, last.tokens


def compare(first: Recorder, second: Recorder) -> dict[str, Any]:
    """Where two runs diverge, and which operations gave two results for the same inputs."""
    one, two, again = (torch.stack(each).cpu() for each in (first.sums, second.sums, second.again))
    length = min(len(one), len(two))
    different = (one[:length] != two[:length]).nonzero().flatten().tolist()
    varying: dict[str, int] = {}
    for index in (two != again).nonzero().flatten().tolist():
        name = second.places[index][2]
        varying[name] = varying.get(name, 0) + 1
    found: dict[str, Any] = {
        "steps": first.step + 1,
        "checksums": length,
        "different": len(different),
        "vary_by_themselves": varying or "none",
    }
    if different:
        step, layer, name = first.places[different[0]]
        found |= {"first_step": step, "first_layer": layer, "first_operation": name}
    return found


def run(report: Report) -> None:
    """Runs with the default kernels (Triton and cuBLAS), then with the definitions in PyTorch."""
    loaded = model(MASKED, dry=report.dry)
    for kernels in ("auto", "reference"):
        for cache in ("none", "dual"):
            os.environ[VARIABLE] = kernels

            def figures(spec: str = f"sequential@{cache}") -> dict[str, Any]:
                runs = [record(loaded, spec, twice=twice) for twice in (False, True)]
                return {**compare(runs[0][0], runs[1][0]), "same_tokens": bool((runs[0][1] == runs[1][1]).all())}

            report.measure({"kernels": kernels, "sampler": f"sequential@{cache}"}, figures)
    report.line("; ".join(f"{row['kernels']} {row['sampler']}: {_verdict(row)}" for row in report.rows))


def _verdict(row: dict[str, Any]) -> str:
    if "different" not in row:
        return str(row.get("error", "not measured"))
    if not row["different"]:
        return f"equal in {row['checksums']} checksums of {row['steps']} steps"
    where = f"step {row['first_step']}, layer {row['first_layer']}, {row['first_operation']}"
    return f"differs first at {where}; vary by themselves: {row['vary_by_themselves']}"
