"""What torch.compile makes of a step, and of whole decodes: the operations of eager ones, traced, through Inductor.

    python benchmarks/compiled.py [--rounds 15] [--out benchmarks/compiled.json]

A step is the stack over the last positions of a full cache and the head on all of them, in float32 on one CPU thread.
Both take turns, in inference mode as decodes are; the median of the ratios is kept, with the seconds that the compiler
took for this one shape. Windows of a masked model keep their shape; a text that grows has another one at every step.

So whole decodes run compiled steps as they would CUDA graphs: of fixed shapes, over the whole capacity of the cache.
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
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import pardec
from pardec.bench.shapes import SHAPES, shaped
from pardec.environment import processor
from pardec.models.cuda_graphs.capture import Step
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.kernels import matmul
from pardec.models.plan import Plan

# Model, rows, positions in the cache, positions asked.
STEPS = [
    ("tiny-dream", 1, 52, 33),
    ("tiny-dream", 8, 52, 52),
    ("random-2m", 1, 1024, 33),
    ("tiny-llama", 1, 64, 1),
    ("tiny-llama", 8, 64, 1),
    ("random-100m-ar", 1, 64, 1),
]

# Model, sampler, rows, new tokens.
DECODES = [
    ("tiny-dream", "sequential@dual", 1, 32),
    ("tiny-llama", "sequential", 1, 64),
    ("tiny-llama", "sequential", 8, 64),
    ("tiny-llama", "lookup:k=7", 1, 64),
    ("random-100m-ar", "sequential", 1, 64),
]
PROMPT = "Sara buys 12 apples and finds 4 more apples. Then Tom buys 3 cups."


def made(name: str) -> pardec.Model:
    return (shaped if name in SHAPES else pardec.load)(name, device="cpu", dtype="float32")


def step(name: str, rows: int, positions: int, asked: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Tokens [rows, asked] -> logits [rows * asked, V], and some tokens."""
    model = made(name).language_model
    cache = model.new_cache(rows, positions)
    span = (positions - asked, positions)
    places, index = torch.arange(*span).expand(rows, asked), torch.arange(asked).expand(rows, asked)
    lengths = torch.full((rows,), positions)

    def run(tokens: Tensor) -> Tensor:
        plan = Plan(tokens, places, places, model.visible(), lengths, index, uniform=positions, span=span)
        return model.decoder.project(model.decoder.forward(plan, cache).states.flatten(0, 1))

    return run, torch.randint(model.vocab_size - 1, (rows, asked), generator=torch.Generator().manual_seed(0))


def seconds(run: Callable[[Tensor], Tensor], tokens: Tensor, repeats: int) -> float:
    """Of one step."""
    with torch.inference_mode():
        started = time.perf_counter()
        for _ in range(repeats):
            run(tokens)
        return (time.perf_counter() - started) / repeats


def compared(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """What a row says of seconds, eager and compiled, that were measured in turn."""
    return {
        "eager_ms": round(1e3 * statistics.median(ours for ours, _ in pairs), 3),
        "compiled_ms": round(1e3 * statistics.median(theirs for _, theirs in pairs), 3),
        "speed_up": round(statistics.median(ours / theirs for ours, theirs in pairs), 3),
    }


def through_inductor(trace: Callable[[], Any]) -> Callable[..., Any]:
    """What `trace` makes, compiled when it is first called."""
    with patch.object(matmul, "onednn_is_faster", lambda: False):  # of products, Inductor knows PyTorch's own
        compiled: Callable[..., Any] = torch.compile(trace())
    return compiled


class Compiler:
    """Records steps by compiling them."""

    def __init__(self) -> None:
        self.shapes, self.seconds = 0, 0.0

    def capture(self, step: Step, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], tuple[Tensor, ...]]:
        started = time.perf_counter()
        compiled = through_inductor(make_fx(step))
        outputs = tuple(compiled())
        self.shapes, self.seconds = self.shapes + 1, self.seconds + time.perf_counter() - started

        def run() -> None:
            for output, found in zip(outputs, compiled(), strict=True):
                output.copy_(found)

        return run, outputs


def decode(name: str, sampler: str, rows: int, tokens: int, rounds: int) -> dict[str, Any]:
    """A row of the second table."""
    eager, compiled, compiler = made(name), made(name), Compiler()
    stack: Any = compiled.language_model.decoder
    compiled.language_model.decoder = GraphRunner(stack, compiler)
    asked: dict[str, Any] = {"sampler": sampler, "max_new_tokens": tokens}
    asked |= {"input_ids": [list(range(5, 25))] * rows} if name in SHAPES else {"prompt": [PROMPT] * rows}

    def run(model: pardec.Model) -> list[list[int]]:
        found: list[list[int]] = model.generate(**asked).sequences.tolist()
        return found

    def timed(model: pardec.Model) -> float:
        started = time.perf_counter()
        run(model)
        return time.perf_counter() - started

    same = run(eager) == run(compiled) == run(compiled)  # a shape that comes for the second time is compiled
    pairs = [(timed(eager), timed(compiled)) for _ in range(rounds)]
    return {
        "model": name,
        "sampler": sampler,
        "rows": rows,
        "same_tokens": same,
        **compared(pairs),
        "shapes": compiler.shapes,
        "compile_s": round(compiler.seconds, 1),
    }


@torch.no_grad()
def measure(name: str, rows: int, positions: int, asked: int, rounds: int) -> dict[str, Any]:
    """A row of the table."""
    eager, tokens = step(name, rows, positions, asked)
    expected = eager(tokens)
    compiled = through_inductor(lambda: make_fx(eager)(tokens))
    started = time.perf_counter()
    with torch.inference_mode():
        found = compiled(tokens)
    spent = time.perf_counter() - started
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    repeats = max(1, int(0.05 / seconds(eager, tokens, 2)))
    pairs = [(seconds(eager, tokens, repeats), seconds(compiled, tokens, repeats)) for _ in range(rounds)]
    return {
        "model": name,
        "rows": rows,
        "positions": positions,
        "asked": asked,
        **compared(pairs),
        "compile_s": round(spent, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.config.force_disable_caches = True  # what was compiled before would take no time
    rows, decodes = [], []
    for each in STEPS:
        rows.append(measure(*each, options.rounds))
        print(rows[-1], flush=True)
    for one in DECODES:
        decodes.append(decode(*one, options.rounds))
        print(decodes[-1], flush=True)
    if options.out:
        machine = {"processor": processor(), "cores": os.cpu_count(), "threads": 1, "torch": torch.__version__}
        command = f"python benchmarks/compiled.py --rounds {options.rounds} --out {options.out}"
        options.out.write_text(
            json.dumps({"command": command, "machine": machine, "rows": rows, "decodes": decodes}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
