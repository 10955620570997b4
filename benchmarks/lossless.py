"""Compares the tokens of lossless speed-ups of masked models with those of one token per forward.

    python benchmarks/lossless.py [--models tiny-llada ...] [--task chains-64] [-n 300] [--run runs/lossless]

`freedave` drafts steps and keeps those that the sampler would take; `linearspec` fills in a block of masks and verifies
it causally, with one set of weights. Each decodes the problems of a task with every cache that promises the same
tokens; results are kept in the folder of `--run`, and the same command continues from there. The page is
`benchmarks/lossless.md`; the exit status is 1 if any token differs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.environment import processor

HERE = Path(__file__).resolve().parent
BRANCHES = ("freedave", "freedave:graph=0-1-2-0.1-0.2-1.2-0.1.2")
PLAIN = {  # by attention of the loaded model: what is compared with what, and the caches
    "bidirectional": ("sequential+eos", [f"{one}+sequential+eos" for one in BRANCHES], ("none", "prefix", "dual")),
    "causal": ("sequential", ["linearspec:k=7", "linearspec:k=15", "linearspec:k=31"], ("",)),
}
PAGE = """# Lossless speed-ups of masked models

`{command}`

Tokens of {prompts} held-out problems of {task} beside those of one token a forward, at most {tokens}, float32, masked
models in blocks of {block}, {batch} rows at once, {processor}, torch {torch}. Unequal: answers with another
token. Forwards count every forward, drafts and verification alike; rows count the hypotheses in them.

| model | cache | sampler | unequal | forwards per token | rows a token |
|---|---|---|---|---|---|
"""


def decode(model: pardec.Model, spec: str, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """The tokens of each prompt, and the number of forwards and rows."""
    tokens: list[list[int]] = []
    forwards = rows = 0
    more = {"block_length": options.block_length} if model.family == "masked" else {}
    for first in range(0, len(texts), options.batch_size):
        batch = texts[first : first + options.batch_size]
        result = model.generate(batch, sampler=spec, max_new_tokens=options.max_new_tokens, **more)
        tokens += result.tokens
        forwards, rows = forwards + sum(result.nfe), rows + sum(result.forward_rows)
    return {"spec": spec, "tokens": tokens, "forwards": forwards, "rows": rows}


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each cache and sampler of a model."""
    attention = {"attention": "causal"} if name == "tiny-nemotron" else {}
    model = pardec.load(name, device="cpu", dtype="float32", **attention)
    plain, samplers, caches = PLAIN[model.language_model.decoding_config.attention]
    texts = [str(problem.prompt) for problem in pardec.task(options.task).problems("heldout", options.n, 7)]
    file = options.run / f"{name}-{options.task}-{options.n}-{options.max_new_tokens}-{options.block_length}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    done = {one["spec"]: one for one in map(json.loads, lines)}
    table = []
    for cache in caches:
        for sampler in (plain, *samplers):
            spec = f"{sampler}@{cache}" if cache else sampler
            if spec not in done:
                done[spec] = decode(model, spec, texts, options)
                with file.open("a") as out:
                    out.write(json.dumps(done[spec]) + "\n")
            own, expected = done[spec], done[f"{plain}@{cache}" if cache else plain]
            unequal = sum(one != other for one, other in zip(own["tokens"], expected["tokens"], strict=True))
            count = sum(map(len, own["tokens"]))
            table.append({"model": name, "cache": cache or "K/V", "sampler": sampler, "unequal": unequal})
            table[-1] |= {key: own[key] / count for key in ("forwards", "rows")}
            print(table[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["tiny-llada", "tiny-dream", "tiny-nemotron"])
    parser.add_argument("--task", default="chains-64")
    parser.add_argument("-n", type=int, default=300, help="problems")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--block-length", type=int, default=16, help="block length of masked decoding")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--run", type=Path, default=Path("runs/lossless"), help="folder of results so far")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.run.mkdir(parents=True, exist_ok=True)
    table = [row for name in options.models for row in measure(name, options)]
    page = PAGE.format(
        command=shlex.join(["python", "benchmarks/lossless.py", *sys.argv[1:]]),
        prompts=options.n,
        task=options.task,
        batch=options.batch_size,
        tokens=options.max_new_tokens,
        block=options.block_length,
        processor=processor(),
        torch=torch.__version__,
    )
    for row in table:
        page += f"| {row['model']} | {row['cache']} | `{row['sampler']}` | {row['unequal']} | {row['forwards']:.3f} "
        page += f"| {row['rows']:.3f} |\n"
    (HERE / "lossless.md").write_text(page)
    sys.exit(any(row["unequal"] for row in table))


if __name__ == "__main__":
    main()
