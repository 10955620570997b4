"""Times continuous batching (`serve_batch`) against static batches, in tokens per second.

    python benchmarks/serving.py --out benchmarks/serving.json

Prompts of one task request very unequal numbers of tokens, log-uniform between two bounds, and no row ends early. The
static batches are the same rows in the same order, decoded by the same loop; each batch ends before the next begins.
The tokens of both are compared. Runs alternate; each figure is the median. Seconds are process time of one thread,
which other load on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import pardec
from pardec.environment import machine, versions
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.speculative.loop import VerifyLoop

CASES = (
    ("tiny-llama", "sequential"),
    ("tiny-llama", "lookup"),
    ("tiny-dream", "threshold:tau=0.9"),
    ("tiny-dream", "threshold:tau=0.9@dual"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--least", type=int, default=4, help="fewest tokens of a row")
    parser.add_argument("--most", type=int, default=128, help="most tokens of a row")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [measure(*case, options) for case in CASES]
    command = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    document = {"command": command, "machine": machine(), "versions": versions(), "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")


def measure(name: str, sampler: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one model and sampler; the first run of each kind warms up."""
    model = pardec.load(name, device="cpu")
    items = requests(options)
    rates: dict[bool, list[float]] = {True: [], False: []}
    tokens: dict[bool, list[list[int]]] = {}
    for repeat in range(options.repeats + 1):
        for continuous in (True, False):
            part = items if repeat else items[: options.batch_size]
            start = time.process_time()
            with batching(continuous):
                serving = model.serve_batch(part, batch_size=options.batch_size, sampler=sampler, stop_ids=[])
                by_index = {row.index: row.tokens for row in serving}
            if repeat:
                rates[continuous].append(serving.tokens / (time.process_time() - start))
                tokens[continuous] = [by_index[index] for index in range(len(items))]
    served, batches = statistics.median(rates[True]), statistics.median(rates[False])
    row = {
        "model": name,
        "sampler": sampler,
        "tokens": sum(map(len, tokens[True])),
        "served_tokens_per_second": round(served, 1),
        "batches_tokens_per_second": round(batches, 1),
        "gain": round(served / batches, 3),
        "rates": {"served": rates[True], "batches": rates[False]},
        "same_tokens": tokens[True] == tokens[False],
    }
    print({key: value for key, value in row.items() if key != "rates"}, flush=True)
    return row


def requests(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Problems, each with its own number of tokens."""
    problems = pardec.task("arithmetic").problems(split="heldout", n=options.problems, seed=7)
    exponents = np.random.default_rng(0).uniform(np.log(options.least), np.log(options.most), options.problems)
    lengths = np.exp(exponents).round().astype(int).tolist()
    return [{"prompt": one.prompt, "max_new_tokens": new} for one, new in zip(problems, lengths, strict=True)]


@contextmanager
def batching(continuous: bool) -> Iterator[None]:
    """Unless `continuous`, no row joins a running batch."""
    if continuous:
        yield
        return
    with (
        patch.object(MaskedLoop, "batching_obstacle", lambda loop: "measured"),
        patch.object(VerifyLoop, "batching_obstacle", lambda loop: "measured"),
    ):
        yield


if __name__ == "__main__":
    main()
