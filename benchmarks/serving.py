"""What it is worth that rows enter a batch as others leave: tokens a second of `serve_batch` and of whole batches.

Prompts of one task ask for very unequal numbers of tokens, log-uniform between two bounds, and nothing ends a row
early. Seconds are those of the processor, so that what else runs on the machine counts little; one thread. The whole
batches are the same rows, in the same order and by the same loop, where each batch is decoded to its
end before the next begins. The tokens of both are compared. Runs alternate; each figure is the median.

    python benchmarks/serving.py --out benchmarks/serving.json
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
    options = argparse.ArgumentParser(description="serve_batch beside whole batches")
    options.add_argument("--out", type=Path)
    options.add_argument("--problems", type=int, default=64)
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--least", type=int, default=4)
    options.add_argument("--most", type=int, default=128)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    rows = [measured(*case, given) for case in CASES]
    said = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
    made = {"command": said, "machine": machine(), "versions": versions(), "rows": rows}
    if given.out:
        given.out.write_text(json.dumps(made, indent=1) + "\n")


def measured(name: str, sampler: str, given: argparse.Namespace) -> dict[str, Any]:
    """Both ways in turn, after a run of each that is not counted."""
    model = pardec.load(name, device="cpu")
    items = asked(given)
    rates: dict[bool, list[float]] = {True: [], False: []}
    tokens: dict[bool, list[list[int]]] = {}
    for turn in range(given.repeats + 1):
        for joined in (True, False):
            part = items if turn else items[: given.batch_size]
            began = time.process_time()
            with whole(joined):
                serving = model.serve_batch(part, batch_size=given.batch_size, sampler=sampler, stop_ids=[])
                found = {row.index: row.tokens for row in serving}
            if turn:
                rates[joined].append(serving.tokens / (time.process_time() - began))
                tokens[joined] = [found[at] for at in range(len(items))]
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


def asked(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Problems, each with a number of tokens of its own."""
    problems = pardec.task("arithmetic").problems(split="heldout", n=given.problems, seed=7)
    draw = np.random.default_rng(0).uniform(np.log(given.least), np.log(given.most), given.problems)
    lengths = np.exp(draw).round().astype(int).tolist()
    return [{"prompt": one.prompt, "max_new_tokens": new} for one, new in zip(problems, lengths, strict=True)]


@contextmanager
def whole(joined: bool) -> Iterator[None]:
    """Without `joined`, no row joins a batch under way."""
    if joined:
        yield
        return
    with (
        patch.object(MaskedLoop, "batching_obstacle", lambda loop: "measured"),
        patch.object(VerifyLoop, "batching_obstacle", lambda loop: "measured"),
    ):
        yield


if __name__ == "__main__":
    main()
