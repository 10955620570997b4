"""What torch.compile makes of a step: the operations of an eager one, traced over one cache, through Inductor.

    python benchmarks/compiled.py [--rounds 15] [--out benchmarks/compiled.json]

A step is the stack over the last positions of a full cache and the head on all of them, in float32 on one CPU thread.
Both take turns, in inference mode as decodes are; the median of the ratios is kept, with the seconds that the compiler
took for this one shape. Windows of a masked model keep their shape; a text that grows has another one at every step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import pardec
from pardec.bench.shapes import SHAPES, shaped
from pardec.environment import processor
from pardec.models.kernels import product
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


def step(name: str, rows: int, positions: int, asked: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Tokens [rows, asked] -> logits [rows * asked, V], and some tokens."""
    model = (shaped if name in SHAPES else pardec.load)(name, device="cpu", dtype="float32").language_model
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


@torch.no_grad()
def measure(name: str, rows: int, positions: int, asked: int, rounds: int) -> dict[str, Any]:
    """A row of the table."""
    eager, tokens = step(name, rows, positions, asked)
    expected = eager(tokens)
    with patch.object(product, "onednn_is_faster", lambda: False):  # of products, Inductor knows PyTorch's own
        traced = make_fx(eager)(tokens)
    compiled = torch.compile(traced)
    started = time.perf_counter()
    with torch.inference_mode():
        made = compiled(tokens)
    spent = time.perf_counter() - started
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-3)
    repeats = max(1, int(0.05 / seconds(eager, tokens, 2)))
    pairs = [(seconds(eager, tokens, repeats), seconds(compiled, tokens, repeats)) for _ in range(rounds)]
    return {
        "model": name,
        "rows": rows,
        "positions": positions,
        "asked": asked,
        "eager_ms": round(1e3 * statistics.median(ours for ours, _ in pairs), 3),
        "compiled_ms": round(1e3 * statistics.median(theirs for _, theirs in pairs), 3),
        "speed_up": round(statistics.median(ours / theirs for ours, theirs in pairs), 3),
        "compile_s": round(spent, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.config.force_disable_caches = True  # what was compiled before would take no time
    rows = []
    for each in STEPS:
        rows.append(measure(*each, options.rounds))
        print(rows[-1], flush=True)
    if options.out:
        machine = {"processor": processor(), "cores": os.cpu_count(), "threads": 1, "torch": torch.__version__}
        command = f"python benchmarks/compiled.py --rounds {options.rounds} --out {options.out}"
        options.out.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
