"""Times decoding steps and whole decodes compiled by torch.compile (Inductor) against eager ones.

    python benchmarks/compiled.py [--rounds 15] [--out benchmarks/compiled.json]

A step is a forward of the last positions of a full KV cache, with logits at all of them, in float32 on one CPU thread.
Eager and compiled runs alternate in inference mode; each row has the median of the ratios, and the seconds to compile
this one shape. Windows of a masked model keep their shape, while a growing text has another shape at every step.

Whole decodes therefore run compiled steps like CUDA graphs, with fixed shapes over the whole capacity of the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import pardec
from pardec.bench.shapes import SHAPES, shaped
from pardec.environment import processor
from pardec.models.cuda_graphs.capture import Step
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.plan import Plan

# Model, batch, cache length, queries.
STEPS = [
    ("tiny-dream", 1, 52, 33),
    ("tiny-dream", 8, 52, 52),
    ("random-2m", 1, 1024, 33),
    ("tiny-llama", 1, 64, 1),
    ("tiny-llama", 8, 64, 1),
    ("random-100m-ar", 1, 64, 1),
]

# Model, sampler, batch, new tokens.
DECODES = [
    ("tiny-dream", "sequential@dual", 1, 32),
    ("tiny-llama", "sequential", 1, 64),
    ("tiny-llama", "sequential", 8, 64),
    ("tiny-llama", "lookup:k=7", 1, 64),
    ("random-100m-ar", "sequential", 1, 64),
]
PROMPT = "Sara buys 12 apples and finds 4 more apples. Then Tom buys 3 cups."


def load(name: str) -> pardec.Model:
    return (shaped if name in SHAPES else pardec.load)(name, device="cpu", dtype="float32")


def make_step(name: str, rows: int, positions: int, queries: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function from tokens [rows, queries] to logits [rows * queries, V], and some tokens."""
    model = load(name).language_model
    cache = model.new_cache(rows, positions)
    span = (positions - queries, positions)
    slots, index = torch.arange(*span).expand(rows, queries), torch.arange(queries).expand(rows, queries)
    lengths = torch.full((rows,), positions)

    def run(tokens: Tensor) -> Tensor:
        plan = Plan(tokens, slots, slots, model.visible(), lengths, index, uniform=positions, span=span)
        return model.decoder.project(model.decoder.forward(plan, cache).states.flatten(0, 1))

    return run, torch.randint(model.vocab_size - 1, (rows, queries), generator=torch.Generator().manual_seed(0))


def seconds(run: Callable[[Tensor], Tensor], tokens: Tensor, repeats: int) -> float:
    """Mean seconds of one step."""
    with torch.inference_mode():
        started = time.perf_counter()
        for _ in range(repeats):
            run(tokens)
        return (time.perf_counter() - started) / repeats


def compare(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The medians and the speed-up of pairs of seconds, eager and compiled."""
    return {
        "eager_ms": round(1e3 * statistics.median(eager for eager, _ in pairs), 3),
        "compiled_ms": round(1e3 * statistics.median(compiled for _, compiled in pairs), 3),
        "speed_up": round(statistics.median(eager / compiled for eager, compiled in pairs), 3),
    }


def compile_trace(trace: Callable[[], Any]) -> Callable[..., Any]:
    """The traced graph, which torch.compile compiles at its first call."""
    compiled: Callable[..., Any] = torch.compile(trace())
    return compiled


class Compiler:
    """A capturer that compiles steps instead of recording CUDA graphs."""

    def __init__(self) -> None:
        self.shapes, self.seconds = 0, 0.0

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        started = time.perf_counter()
        compiled = compile_trace(make_fx(step))
        outputs = tuple(compiled())
        self.shapes, self.seconds = self.shapes + 1, self.seconds + time.perf_counter() - started

        def run() -> None:
            for output, result in zip(outputs, compiled(), strict=True):
                output.copy_(result)

        return run, outputs


def decode(name: str, sampler: str, rows: int, tokens: int, rounds: int) -> dict[str, Any]:
    """The table row of one decode."""
    eager, compiled, compiler = load(name), load(name), Compiler()
    stack: Any = compiled.language_model.decoder
    compiled.language_model.decoder = GraphRunner(stack, compiler)
    arguments: dict[str, Any] = {"sampler": sampler, "max_new_tokens": tokens}
    arguments |= {"input_ids": [list(range(5, 25))] * rows} if name in SHAPES else {"prompt": [PROMPT] * rows}

    def run(model: pardec.Model) -> list[list[int]]:
        tokens: list[list[int]] = model.generate(**arguments).sequences.tolist()
        return tokens

    def timed(model: pardec.Model) -> float:
        started = time.perf_counter()
        run(model)
        return time.perf_counter() - started

    same = run(eager) == run(compiled) == run(compiled)  # a shape is compiled when it occurs for the second time
    pairs = [(timed(eager), timed(compiled)) for _ in range(rounds)]
    return {
        "model": name,
        "sampler": sampler,
        "rows": rows,
        "same_tokens": same,
        **compare(pairs),
        "shapes": compiler.shapes,
        "compile_s": round(compiler.seconds, 1),
    }


@torch.no_grad()
def measure(name: str, rows: int, positions: int, queries: int, rounds: int) -> dict[str, Any]:
    """The table row of one step."""
    eager, tokens = make_step(name, rows, positions, queries)
    expected = eager(tokens)
    compiled = compile_trace(lambda: make_fx(eager)(tokens))
    started = time.perf_counter()
    with torch.inference_mode():
        result = compiled(tokens)
    compilation = time.perf_counter() - started
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
    repeats = max(1, int(0.05 / seconds(eager, tokens, 2)))
    pairs = [(seconds(eager, tokens, repeats), seconds(compiled, tokens, repeats)) for _ in range(rounds)]
    return {
        "model": name,
        "rows": rows,
        "positions": positions,
        "asked": queries,
        **compare(pairs),
        "compile_s": round(compilation, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.config.force_disable_caches = True  # so that compilation is measured
    rows, decodes = [], []
    for case in STEPS:
        rows.append(measure(*case, options.rounds))
        print(rows[-1], flush=True)
    for request in DECODES:
        decodes.append(decode(*request, options.rounds))
        print(decodes[-1], flush=True)
    if options.out:
        machine = {"processor": processor(), "cores": os.cpu_count(), "threads": 1, "torch": torch.__version__}
        command = f"python benchmarks/compiled.py --rounds {options.rounds} --out {options.out}"
        options.out.write_text(
            json.dumps({"command": command, "machine": machine, "rows": rows, "decodes": decodes}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
