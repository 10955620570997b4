"""Measures accuracy, memory and speed of quantized embedded models against unquantized ones, on one CPU thread.

    python benchmarks/quantize.py [-n 50] [--rounds 10] [--out benchmarks/quantize.json]

Accuracy and forwards are those of held-out arithmetic problems. Milliseconds are those of one forward over 32 positions
without a KV cache. The variants of a model alternate in each round; the figures are medians over the rounds, of the
time and of its ratio to the unquantized model in the same dtype. Without a C compiler it needs the extra `quant`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.environment import processor
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

MODELS = {"tiny-dream": "threshold:tau=0.9@dual", "tiny-llama": "sequential"}
VARIANTS = [("float32", None), ("float32", "int8"), ("bfloat16", None), ("bfloat16", "int8"), ("bfloat16", "int4")]
BATCHES = (1, 8)
POSITIONS = 32


def forward_ms(model: LanguageModel, batch: int, repeats: int = 5) -> float:
    """Milliseconds of one forward with logits at all positions."""
    ids = torch.arange(batch * POSITIONS).view(batch, POSITIONS) % model.vocab_size
    plan = Plan.full(ids, model.visible())
    started = time.perf_counter()
    for _ in range(repeats):
        model.forward(plan).logits()
    return 1e3 * (time.perf_counter() - started) / repeats


def measure(name: str, sampler: str, count: int, rounds: int) -> list[dict[str, Any]]:
    """One row per variant of the model."""
    variants = [pardec.load(name, device="cpu", dtype=dtype, quantize=kind) for dtype, kind in VARIANTS]
    times: dict[tuple[int, int], list[float]] = {}
    for index in range(rounds + 1):
        for batch in BATCHES:
            for variant, model in enumerate(variants):
                duration = forward_ms(model.language_model, batch)
                if index:  # the first round warms up
                    times.setdefault((variant, batch), []).append(duration)
    rows = []
    for variant, (model, (dtype, kind)) in enumerate(zip(variants, VARIANTS, strict=True)):
        unquantized = VARIANTS.index((dtype, None))
        arguments: dict[str, Any] = {"limit": count, "batch_size": 10, "references": False, "replays": 0}
        result = pardec.compare(model, "arithmetic", sampler, max_new_tokens=64, **arguments).rows[0]
        row = {"model": name, "dtype": dtype, "quantize": kind, "sampler": result["sampler"], "problems": count}
        row |= {"accuracy": result["accuracy"], "forwards": round(result["nfe_to_end"], 2)}
        row["weight_bytes"] = model.language_model.weight_bytes
        for batch in BATCHES:
            pairs = zip(times[variant, batch], times[unquantized, batch], strict=True)
            ratios = [own / other for own, other in pairs]
            row[f"forward_ms_batch_{batch}"] = round(statistics.median(times[variant, batch]), 3)
            row[f"times_whole_batch_{batch}"] = round(statistics.median(ratios), 2)
        row["said"] = model.network.describe().partition("(as asked), ")[2]
        rows.append(row)
        print({key: value for key, value in row.items() if key != "said"}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=50, help="problems per model")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name, spec in MODELS.items() for row in measure(name, spec, options.n, options.rounds)]
    if options.out:
        machine = {"processor": processor(), "threads": 1, "load": os.getloadavg()[0]}
        versions = {"torch": metadata.version("torch")}
        command = f"python benchmarks/quantize.py -n {options.n} --rounds {options.rounds}"
        document = {"command": command, "machine": machine, "versions": versions, "rows": rows}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
