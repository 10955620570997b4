"""Times a step of each method of the block, branch, query and attention stages at 1,024 positions of random weights.

    python benchmarks/step_costs.py [--shape random-2m] [--pairs 3] [--steps 33]

A row of 512 known tokens and 512 masks is decoded in blocks of 32 and left after `--steps` forwards, or once it is
full. Each method is timed in turn with `threshold` and the same cache. With random weights, confidence commits one
token per step, so that the steps are a block and the first step of the next. Methods that commit more begin blocks more
often, which a cache computes whole. Caches are compared with no cache. The page is `benchmarks/step_costs.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

import pardec
from pardec.bench.shapes import shaped
from pardec.environment import processor
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.events import Step

HERE = Path(__file__).resolve().parent
KNOWN, MASKS = 512, 512
PLAIN = "threshold"
METHODS = (
    "dsb", "adablock:delimiters=13", "dcd", "slowfast", "multiblock", "freedave", "freedave:drafts=8,width=2", "lopa",
    "dpad", "suffix", "adaptive_length", "dawn", "dapd", "dus", "bound", "cumulative", "saber", "density+fixed",
    "spacing",
)  # fmt: skip
CACHES = ("@none", "@prefix", "@dual")
ALONE = ("@spa", "@d2cache", "@dkv", "@vicinity")
PAGE = """# What a step costs

`{command}`

A row of {known} known tokens and {masks} masks, blocks of 32, {shape} with random weights in float32, the first
{steps} steps or as many as it takes, one thread, {processor}, torch {torch}. Seconds are those of the process.
"Beside" is the median over {pairs} pairs of a method's seconds over those of the line it is compared with, timed in
turn: `threshold` with the same cache, and without one for caches.

| sampler | ms a step | positions per step | beside | of |
|---|---|---|---|---|
"""


class Cost(NamedTuple):
    """The cost of the first steps of a decode."""

    seconds: float
    fed: float  # positions per step


def decode(model: pardec.Model, spec: str, ids: torch.Tensor, steps: int) -> Cost:
    """The first `steps` forwards of a decode."""
    arguments: dict[str, Any] = {"max_new_tokens": MASKS, "block_length": 32, "stop_ids": [], "sampler": spec}
    fed: list[int] = []
    hook = model.language_model.decoder.register_forward_pre_hook(lambda _, given: fed.append(given[0].tokens.numel()))
    with hook, contextlib.closing(model.stream(input_ids=ids, **arguments)) as events:  # type: ignore[type-var]
        start = time.process_time()
        done = sum(1 for _ in islice((event for event in events if isinstance(event, Step)), steps))
        seconds = time.process_time() - start
    return Cost(seconds / done, sum(fed) / done)


def specs() -> Iterator[tuple[str, str]]:
    """Each sampler, and the sampler that it is compared with."""
    for cache in CACHES:
        for method in METHODS:
            selects = method.split(":")[0] in ("dawn", "dapd", "dus", "bound", "cumulative", "density+fixed")
            yield f"{method}{'' if selects else '+' + PLAIN}{cache}", f"{PLAIN}{cache}"
    for cache in (*CACHES[1:], *ALONE):
        yield f"{PLAIN}{cache}", f"{PLAIN}@none"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", default="random-2m")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=33)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = shaped(options.shape, device="cpu", dtype="float32")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, model.language_model.vocab_size - 5, (1, KNOWN), generator=generator)
    page = PAGE.format(
        command=shlex.join(["python", "benchmarks/step_costs.py", *sys.argv[1:]]),
        known=KNOWN,
        masks=MASKS,
        shape=options.shape,
        steps=options.steps,
        pairs=options.pairs,
        processor=processor(),
        torch=torch.__version__,
    )
    for spec, plain in specs():
        try:
            registry.resolve(spec, "masked")
        except SpecError as error:
            print(f"{spec}: {error.message}")
            continue
        found: dict[str, list[Cost]] = {spec: [], plain: []}
        for pair in range(options.pairs):
            for one in (spec, plain) if pair % 2 else (plain, spec):
                found[one].append(decode(model, one, ids, options.steps))
        seconds = {one: statistics.median(cost.seconds for cost in costs) for one, costs in found.items()}
        beside = statistics.median(one.seconds / two.seconds for one, two in zip(*found.values(), strict=True))
        line = f"| `{spec}` | {1e3 * seconds[spec]:.1f} | {found[spec][0].fed:.0f} | {beside:.2f} | `{plain}` |\n"
        print(line, end="", flush=True)
        page += line
    (HERE / "step_costs.md").write_text(page)


if __name__ == "__main__":
    main()
