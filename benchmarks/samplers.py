"""Compares every sampler and every cache on held-out problems of an embedded model.

    python benchmarks/samplers.py [-n 200] [--task arithmetic] [--out benchmarks/samplers.json] [--markdown FILE]
        [--run FOLDER] [--specs SPEC ...]

Every select and every stage that stands beside one runs without a cache; every cache runs with `threshold` (and
`dkv_greedy`, which needs a random order, beside the same order without it). All decode 128 tokens in blocks of 32 and
stop at the end token. A row of the table: share of problems answered exactly, mean forwards, answer tokens per forward
(those before the first end token), positions fed for each answer token, and the share of the floor: the forwards of
`oracle` with the same cache over those of the sampler. With `--run` the comparison is kept, with its report, and the
same command goes on with it. `samplers_timed.json` holds the specs whose speed the README shows, run alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.environment import processor

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


def stopping(spec: str) -> str:
    """The spec with `eos`."""
    body, mark, cache = spec.partition("@")
    return f"{body}{'' if 'eos' in body else '+eos'}{mark}{cache}"


def measure(model: pardec.Model, specs: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a spec: what it makes of the held-out problems."""
    compared = pardec.compare(
        model,
        options.task,
        [stopping(spec) for spec in specs],
        limit=options.n,
        problem_seed=options.seed,
        batch_size=options.batch_size,
        max_new_tokens=128,
        block_length=32,
        out=options.run,
        resume=options.run is not None,
        progress=True,
    )
    for note in compared.notes:
        print(note, file=sys.stderr)
    fields = ("nfe", "tokens_per_forward", "fed_per_token", "tokens_per_second", "floor_share")
    return [
        {"sampler": spec, "exact": row["accuracy"], **{name: row[name] for name in fields}}
        for spec, row in zip(specs, compared.rows, strict=True)
        if row["nfe"] is not None
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| sampler | exact | forwards | tokens per forward | positions per token | share of the floor |",
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
    parser.add_argument("--run", type=Path, help="folder that keeps the comparison")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu", dtype="float32")
    rows = measure(model, list(options.specs), options)
    for r in rows:
        print(
            f"{r['sampler']:42} {100 * r['exact']:5.1f}% {r['nfe']:6.2f} forwards {r['tokens_per_forward']:6.2f} "
            f"tokens each {r['fed_per_token']:7.1f} positions each"
        )
    head = {"model": options.model, "task": options.task, "problems": options.n, "seed": options.seed}
    head |= {"command": "python " + " ".join(sys.argv), "torch": torch.__version__}
    head |= {"processor": processor()}
    if options.out:
        options.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        title = f"# {options.task} with {options.model}\n\n{options.n} held-out problems; `{head['command']}`.\n\n"
        options.markdown.write_text(title + table(rows))


if __name__ == "__main__":
    main()
