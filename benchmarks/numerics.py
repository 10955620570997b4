"""Differences between float32, bfloat16 and int8: errors and ties of logits, and rows that depend on their batch.

    python benchmarks/numerics.py --model SmolLM2-135M-Instruct.Q4_1.gguf --prompts spec_bench.jsonl
        [--positions 10000] [--rows 64] [--new 48] [--only logits|shapes|batches]

Three tables, in benchmarks/numerics.md and numerics.json:

- logits: over the greedy answers of the model, each way to compute beside transformers in float64 on the weights that
  the package gguf dequantizes: the largest and the mean absolute error of a logit, KL per token, how often the two
  likeliest logits are equal (a tie) or closer than a hundredth, and how often the likeliest token is another one.
- shapes: a token decoded alone, over a cache, beside a forward over 8 tokens as a verification makes it: positions with
  a bit that differs, and with another likeliest token.
- batches: greedy tokens of the same prompts, of unequal length, alone and in batches of up to 64: rows that are equal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pardec
from pardec.environment import processor
from pardec.models.plan import Plan
from pardec.training.texts import chat_ids

HERE = Path(__file__).resolve().parent
WAYS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "packed": False},
    "packed weights, float32 activations": {"dtype": "float32", "packed": True},
    "packed weights, int8 activations": {"dtype": "float32", "packed": True, "activations": "int8"},
    "bfloat16": {"dtype": "bfloat16", "packed": False},
}
SIZES = (2, 4, 8, 16, 32, 64)  # rows of a batch
VERIFIED = 8  # tokens of a forward that verifies
NEAR = 0.01  # logits closer than this

Row = dict[str, Any]
Texts = list[tuple[list[int], int]]  # ids, and where the answer begins


def answers(model: pardec.Model, prompts: list[str], positions: int, new: int = 256) -> Texts:
    """Prompts with their greedy answers, until the answers have `positions` positions."""
    found: Texts = []
    count = 0
    for prompt in prompts:
        ids = chat_ids(model, prompt)[-256:]
        tokens = model.generate(input_ids=[ids], sampler="sequential", max_new_tokens=new).tokens[0]
        found.append((ids + list(tokens), len(ids)))
        count += len(tokens)
        if count >= positions:
            return found
    raise SystemExit(f"{len(prompts)} prompts have only {count} positions: pass more, or a lower --positions")


def precise(file: Path) -> Callable[[list[int]], Tensor]:
    """Logits [T, V] of transformers in float64."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    model = model.double().eval()
    return lambda ids: model(torch.tensor([ids])).logits[0].double()


def compared(texts: Texts, exact: Callable[[list[int]], Tensor], models: dict[str, pardec.Model]) -> list[Row]:
    """A row per way to compute, and one for float64 itself."""
    totals: dict[str, Row] = {}
    for number, (ids, start) in enumerate(texts, 1):
        with torch.inference_mode():
            true = exact(ids)[start - 1 : -1]
        law = true.log_softmax(-1)
        every = {"float64": true} | {
            name: model.logits(torch.tensor([ids]))[0, start - 1 : -1].double() for name, model in models.items()
        }
        for name, found in every.items():
            top = found.topk(2, -1).values
            error, own = (found - true).abs(), totals.setdefault(name, {"positions": 0, "largest": 0.0})
            own["positions"] += len(found)
            own["largest"] = max(own["largest"], error.max().item())
            for key, values in (
                ("error", error.mean(-1)),
                ("kl", (law.exp() * (law - found.log_softmax(-1))).sum(-1).clamp(min=0)),
                ("ties", (top[:, 0] == top[:, 1]).double()),
                ("near", (top[:, 0] - top[:, 1] < NEAR).double()),
                ("other", (found.argmax(-1) != true.argmax(-1)).double()),
            ):
                own[key] = own.get(key, 0.0) + values.sum().item()
        print(f"logits: {number} of {len(texts)} answers", flush=True)
    keys = ("error", "kl", "ties", "near", "other")
    return [{"way": name, **own, **{key: own[key] / own["positions"] for key in keys}} for name, own in totals.items()]


def through_cache(model: pardec.Model, ids: list[int], width: int) -> Tensor:
    """[T, V]: the logits of forwards over `width` tokens at a time, each over the cache of those before."""
    network = model.language_model
    cache = network.new_cache(1, len(ids))
    every = Plan.full(torch.tensor([ids]), network.visible())
    found = []
    with torch.inference_mode():
        for start in range(0, len(ids), width):
            stop = min(start + width, len(ids))
            at = torch.arange(start, stop)[None]
            plan = replace(
                every,
                tokens=every.tokens[:, start:stop], positions=at, slots=at, span=(start, stop),
                lengths=torch.tensor([stop]), uniform=stop, want=torch.arange(stop - start)[None],
            )  # fmt: skip
            found.append(network.forward(plan, cache).logits()[0].float())
    return torch.cat(found)


def shapes(texts: Texts, models: dict[str, pardec.Model]) -> list[Row]:
    rows = []
    for name, model in models.items():
        same = other = count = 0
        largest = 0.0
        for ids, _ in texts:
            ids = ids[: len(ids) // VERIFIED * VERIFIED]
            one, many = (through_cache(model, ids, width) for width in (1, VERIFIED))
            same += int((one == many).all(-1).sum())
            other += int((one.argmax(-1) != many.argmax(-1)).sum())
            largest = max(largest, (one - many).abs().max().item())
            count += len(one)
        rows.append({"way": name, "positions": count, "same": same / count, "other": other / count, "largest": largest})
        print(rows[-1], flush=True)
    return rows


def batches(prompts: list[list[int]], models: dict[str, pardec.Model], new: int) -> Iterator[Row]:
    for name, model in models.items():
        alone = [model.generate(input_ids=[ids], sampler="sequential", max_new_tokens=new).tokens[0] for ids in prompts]
        equal = {}
        for size in SIZES:
            together: list[Any] = []
            for start in range(0, len(prompts), size):
                batch = prompts[start : start + size]
                together += model.generate(input_ids=batch, sampler="sequential", max_new_tokens=new).tokens
            equal[str(size)] = sum(list(a) == list(b) for a, b in zip(alone, together, strict=True))
        row = {"way": name, "rows": len(prompts), "equal": equal}
        print(row, flush=True)
        yield row


def page(data: Row) -> str:
    lines = [
        "# Rounding",
        "",
        f"Made by `{data['command']}`, whose docstring says what is compared.",
        f"SmolLM2-135M on {data['processor']}, torch {data['torch']}; {data['date']}.",
        "",
    ]  # fmt: skip
    if rows := data.get("logits"):
        lines += [
            "## Logits",
            "",
            f"{rows[0]['positions']:,} positions of greedy answers, 49,152 logits each. `tie`: the two highest "
            f"logits are equal; `near`: they differ by less than {NEAR}. `other token`: the likeliest one is "
            "not that of float64.",
            "",
            "| computed in | largest error | mean error | KL per token | tie | near | other token |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['way']} | {row['largest']:.2g} | {row['error']:.2g} | {row['kl']:.2g} | {row['ties']:.2%} | "
            f"{row['near']:.2%} | {row['other']:.2%} |"
            for row in rows
        ]
        lines.append("")
    if rows := data.get("shapes"):
        lines += [
            "## One token at a time, and several",
            "",
            f"Logits of forwards over one token beside those of forwards over {VERIFIED}, both over a cache.",
            "",
            "| computed in | positions | equal in every bit | other token | largest difference |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['way']} | {row['positions']:,} | {row['same']:.1%} | {row['other']:.2%} | {row['largest']:.2g} |"
            for row in rows
        ]
        lines.append("")
    if rows := data.get("batches"):
        lines += [
            "## Rows of a batch",
            "",
            f"Greedy answers of {data['new']} tokens to {rows[0]['rows']} prompts of unequal length: how many rows "
            "have the tokens that they have alone, by the rows of a batch.",
            "",
            f"| computed in | {' | '.join(map(str, SIZES))} |",
            f"|---|{'---|' * len(SIZES)}",
        ]
        lines += [f"| {row['way']} | {' | '.join(str(row['equal'][str(size)]) for size in SIZES)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--only", choices=("logits", "shapes", "batches"))
    given = parser.parse_args()
    every = [json.loads(line)["turns"][0] for line in given.prompts.read_text(encoding="utf-8").splitlines()]
    models = {name: pardec.load(str(given.model), device="cpu", **ways) for name, ways in WAYS.items()}
    file = HERE / "numerics.json"
    data: Row = json.loads(file.read_text(encoding="utf-8")) if given.only and file.is_file() else {}
    asked = f"--positions {given.positions} --rows {given.rows} --new {given.new}"
    files = f"--model {given.model.name} --prompts {given.prompts.name}"
    data |= {"command": f"python benchmarks/numerics.py {files} {asked}"}
    data |= {"processor": processor(), "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat()}
    first = next(iter(models.values()))
    if given.only in (None, "logits", "shapes"):
        texts = answers(models["packed weights, float32 activations"], every[:: 480 // 60], given.positions)
    if given.only in (None, "logits"):
        data["logits"] = compared(texts, precise(given.model), models)
    if given.only in (None, "shapes"):
        data["shapes"] = shapes(texts[:4], models)
    if given.only in (None, "batches"):
        prompts = [chat_ids(first, text)[-96:] for text in every[:: max(1, len(every) // given.rows)][: given.rows]]
        data |= {"batches": list(batches(prompts, models, given.new)), "new": given.new}
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (HERE / "numerics.md").write_text(page(data), encoding="utf-8")


if __name__ == "__main__":
    main()
