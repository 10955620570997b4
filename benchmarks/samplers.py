"""Compares every sampler and every cache on held-out problems of an embedded model.

    python benchmarks/samplers.py [-n 200] [--task arithmetic] [--out benchmarks/samplers.json] [--markdown FILE]

Every select and every stage that stands beside one runs without a cache; every cache runs with `threshold` (and
`dkv_greedy`, which needs a random order, beside the same order without it). All decode 128 tokens in blocks of 32 and
stop at the end token. A row of the table: share of problems answered exactly, mean forwards, answer tokens a forward
(those before the first end token), positions fed for each answer token, and the share of the floor: the forwards of
`oracle` with the same cache over those of the sampler.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.models.errors import SpecError

SELECTS = (
    "sequential",
    "oracle",
    "fixed:steps=64",
    "timesteps:steps=64",
    "origin:steps=64",
    "threshold:tau=0.9",
    "threshold:tau=0.98",
    "factor",
    "entropy_threshold",
    "entropy_bound",
    "entropy_bound:gamma=0.01",
    "confident",
    "carry",
    "klass",
    "hierarchy",
    "learned",
    "margin+threshold:tau=0.9",
    "leftmost+sequential",
    "random+fixed",
)
BESIDE = (
    "credit+threshold:tau=0.9",
    "credit:free=true+threshold:tau=0.9",
    "threshold:tau=0.9+localleap",
    "credit+threshold:tau=0.9+localleap",
    "smoothing+threshold:tau=0.9,fall=0.02",
    "wino",
    "threshold:tau=0.9+remdm",
    "threshold:tau=0.9+edit",
    "threshold:tau=0.9+prophet",
    "fixed+prophet",
)
CACHES = ("prefix", "dual", "dual:refresh=4", "vicinity:warmup=0", "dkv", "dkv:prompt=keep")
CACHED = (
    *(f"{select}@{cache}" for cache in CACHES for select in ("oracle", "threshold:tau=0.9", "threshold:tau=0.98")),
    "random+fixed@dkv_greedy",
    "credit+threshold:tau=0.9+localleap@dual",
)
SPECS = (*SELECTS, *BESIDE, *CACHED)


def measure(model: pardec.Model, task: str, spec: str, count: int, seed: int, batch: int) -> dict[str, Any]:
    """One row: what `spec` makes of `count` held-out problems."""
    made = pardec.task(task)
    problems = made.problems(split="heldout", n=count, seed=seed)
    body, mark, cache = spec.partition("@")
    full = f"{body}{'' if 'eos' in body else '+eos'}{mark}{cache}"
    exact = forwards = tokens = fed = 0
    started = time.perf_counter()
    for start in range(0, count, batch):
        part = problems[start : start + batch]
        result = model.generate([problem.prompt for problem in part], sampler=full, max_new_tokens=128, block_length=32)
        assert result.text is not None
        exact += sum(made.score(problem, text) == 1 for problem, text in zip(part, result.text, strict=True))
        forwards += sum(result.nfe)
        tokens += sum(result.generated)
        fed += sum(result.tokens_fed)
    return {
        "sampler": spec,
        "exact": exact / count,
        "nfe": forwards / count,
        "tokens_per_forward": tokens / forwards,
        "fed_per_token": fed / tokens,
        "seconds": time.perf_counter() - started,
    }


def with_floor(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with `floor_share`: forwards of the oracle with the same cache over their own."""
    floors = {row["sampler"].partition("@")[2]: row["nfe"] for row in rows if row["sampler"].startswith("oracle")}
    for row in rows:
        floor = floors.get(row["sampler"].partition("@")[2])
        row["floor_share"] = None if floor is None else floor / row["nfe"]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| sampler | exact | forwards | tokens a forward | fed a token | share of the floor |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = "" if row["floor_share"] is None else f"{100 * row['floor_share']:.0f}%"
        lines.append(
            f"| `{row['sampler']}` | {100 * row['exact']:.1f}% | {row['nfe']:.2f} | {row['tokens_per_forward']:.2f} | "
            f"{row['fed_per_token']:.1f} | {share} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-dream")
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("-n", type=int, default=200, help="problems")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--specs", nargs="*", default=SPECS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu", dtype="float32")
    rows = []
    for spec in options.specs:
        try:
            rows.append(measure(model, options.task, spec, options.n, options.seed, options.batch_size))
        except SpecError as error:
            print(f"{spec}: {error}", file=sys.stderr)
            continue
        r = rows[-1]
        print(
            f"{spec:42} {100 * r['exact']:5.1f}% {r['nfe']:6.2f} forwards {r['tokens_per_forward']:6.2f} tokens each "
            f"{r['fed_per_token']:7.1f} fed a token",
            flush=True,
        )
    rows = with_floor(rows)
    head = {"model": options.model, "task": options.task, "problems": options.n, "seed": options.seed}
    head |= {"command": "python " + " ".join(sys.argv), "torch": torch.__version__}
    head |= {"processor": platform.processor() or platform.machine()}
    if options.out:
        options.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        title = f"# {options.task} with {options.model}\n\n{options.n} held-out problems; `{head['command']}`.\n\n"
        options.markdown.write_text(title + table(rows))


if __name__ == "__main__":
    main()
