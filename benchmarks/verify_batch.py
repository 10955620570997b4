"""Times a batch of unequal rows in speculative decoding against the same rows one by one, and against transformers.

    python benchmarks/verify_batch.py [--model tiny-llama] [--pairs 5] [--out benchmarks/verify_batch.json]

Batched and single runs alternate and must give the same tokens. `fed` is the number of positions of all forwards,
padding included, over what the rows need alone. Times are process time, which other load on the machine changes little,
and wall time (`clock_s`), both medians over the pairs. transformers decodes the same weights greedily.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import pardec
from pardec.environment import processor, versions

PROMPTS = [
    "Tom has 12 apples. He buys 7 more. How many apples does Tom have now?",
    "Ann has 8 cups.",
    "Sort: 5 3 9 1 8 2 7 4",
    "Copy: a b c d e f g h a b c d e f g h a b c d",
    "Reverse: 1 2 3",
    'Repeat: {"name": "Ravi", "city": "Quito", "job": "baker"} {"name": "Ravi", "city": "Quito", "job":',
    "List: 9 8 7 6 5 9 8 7",
    "Bob runs 3 miles a day. How many miles does Bob run in 6 days? Bob runs 3 miles a day.",
]
SAMPLERS = ("sequential", "lookup", "recycling")
Clock = tuple[float, float]  # seconds of process time, of wall time


def timed(run: Callable[[], Any]) -> tuple[Any, Clock]:
    process, clock = time.process_time(), time.perf_counter()
    result = run()
    return result, (time.process_time() - process, time.perf_counter() - clock)


def medians(times: list[Clock]) -> dict[str, float]:
    return {
        "process_s": statistics.median(process for process, _ in times),
        "clock_s": statistics.median(clock for _, clock in times),
    }


def measure(model: pardec.Model, sampler: str, new: int, pairs: int) -> dict[str, Any]:
    """The row of one sampler: eight prompts in a batch, and each alone."""

    def together() -> pardec.Result:
        return model.generate(PROMPTS, sampler=sampler, max_new_tokens=new, stop_ids=[])

    def alone() -> list[pardec.Result]:
        return [model.generate(text, sampler=sampler, max_new_tokens=new, stop_ids=[]) for text in PROMPTS]

    batched, single = together(), alone()  # warm-up
    assert batched.tokens == [result.tokens[0] for result in single], "a row gives the same tokens in a batch and alone"
    batch_times, single_times = [], []
    for _ in range(pairs):
        batch_times.append(timed(together)[1])
        single_times.append(timed(alone)[1])
    needed = sum(result.tokens_fed[0] for result in single)
    batch, singles, tokens = medians(batch_times), medians(single_times), new * len(PROMPTS)
    return {
        "sampler": batched.spec,
        "tokens": tokens,
        "nfe": batched.nfe,
        "acceptance_length": batched.acceptance_length,
        "fed": (sum(batched.tokens_fed) + batched.padding) / needed,
        "batch": batch,
        "single": singles,
        "tokens_per_second": tokens / batch["process_s"],
        "tokens_per_second_single": tokens / singles["process_s"],
        "speed_up": singles["process_s"] / batch["process_s"],
    }


def peer(model: pardec.Model, count: int, new: int, pairs: int) -> dict[str, Any]:
    """`sequential` against transformers' greedy `generate`, over `count` rows."""
    assert model.path is not None
    network = transformers.AutoModelForCausalLM.from_pretrained(str(model.path), dtype=torch.float32).eval()
    network.generation_config.eos_token_id = None  # as with stop_ids=[]
    ids = model.tokenizer(PROMPTS[:count], return_tensors="pt", padding=True, padding_side="left")
    inputs = {name: ids[name] for name in ("input_ids", "attention_mask")}

    def theirs() -> list[list[int]]:
        with torch.inference_mode():
            out = network.generate(**inputs, max_new_tokens=new, do_sample=False)
        tokens: list[list[int]] = out[:, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    def ours() -> pardec.Result:
        return model.generate(PROMPTS[:count], max_new_tokens=new, stop_ids=[])

    same = theirs() == ours().tokens
    own_times, their_times = [], []
    for _ in range(pairs):
        own_times.append(timed(ours)[1])
        their_times.append(timed(theirs)[1])
    own, other = medians(own_times), medians(their_times)
    return {
        "rows": count,
        "same_tokens": same,
        "pardec": own,
        "transformers": other,
        "speed_up": other["process_s"] / own["process_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = pardec.load(options.model, device="cpu", dtype="float32")
    rows = []
    for sampler in SAMPLERS:
        rows.append(row := measure(model, sampler, options.max_new_tokens, options.pairs))
        print(
            f"{sampler:10} {row['fed']:.2f}x the positions, {row['tokens_per_second']:.0f} tokens/s in a batch, "
            f"{row['tokens_per_second_single']:.0f} one by one: {row['speed_up']:.2f}x as fast"
        )
    peers = []
    for count in (1, len(PROMPTS)):
        peers.append(row := peer(model, count, options.max_new_tokens, options.pairs))
        print(f"{count} rows: {row['speed_up']:.2f}x as fast as transformers; same tokens: {row['same_tokens']}")
    if options.out:
        machine = {"processor": processor(), "threads": 1}
        command = " ".join(["python", "benchmarks/verify_batch.py", *sys.argv[1:]])
        report = {"command": command, "model": options.model, "machine": machine, "versions": versions()}
        options.out.write_text(json.dumps({**report, "rows": rows, "peers": peers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
