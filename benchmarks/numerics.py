"""Differences between float32, bfloat16 and int8: errors and ties of logits, and rows that depend on their batch.

    python benchmarks/numerics.py --model SmolLM2-135M-Instruct.Q4_1.gguf --prompts spec_bench.jsonl
        [--positions 10000] [--new 48] [--only logits|shapes|batches] [--models NAME ...]

Three tables, in benchmarks/numerics.md and numerics.json:

- logits: over the greedy answers of the model, each way to compute beside transformers in float64 on the weights that
  the package gguf dequantizes: the largest and the mean absolute error of a logit, KL per token, how often the two
  likeliest logits are equal (a tie) or closer than a hundredth, and how often the likeliest token is another one.
- shapes: a token decoded alone, over a cache, beside a forward over 8 tokens as a verification makes it: positions with
  a bit that differs, and with another likeliest token.
- batches: greedy tokens of the first prompts, of unequal length, in one batch of 1 to 64 rows, beside each prompt alone
  (without drafts where the batch has drafts), of the model and of two embedded ones: rows that differ, and by how much.
  --models names some of them; what the file says of the others stays.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pardec
from pardec.environment import processor
from pardec.models.plan import Plan
from pardec.samplers.logprobs import TokenLogprobs
from pardec.training.texts import chat_ids

HERE = Path(__file__).resolve().parent
WAYS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "packed": False},
    "packed weights, float32 activations": {"dtype": "float32", "packed": True},
    "packed weights, int8 activations": {"dtype": "float32", "packed": True, "activations": "int8"},
    "bfloat16": {"dtype": "bfloat16", "packed": False},
}
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # rows of a batch
TYPES = {name: {"dtype": name} for name in ("float32", "bfloat16")}
SAMPLERS = {  # by the model, the plain one first
    "tiny-llama": ("sequential", "lookup:k=4", "eagle:name=tiny-llama-eagle"),
    "tiny-dream": ("confident", "threshold:tau=0.8", "threshold:tau=0.8@dual"),
    "SmolLM2-135M": ("sequential", "lookup:k=4"),
}
EMBEDDED = ("tiny-llama", "tiny-dream")
DRAFTED = ("lookup:k=4", "eagle:name=tiny-llama-eagle")  # they have the tokens of the plain one
TOP = 20  # likeliest tokens whose log-probabilities are compared
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


def batches(name: str, way: str, model: pardec.Model, prompts: list[list[int]], new: int) -> Iterator[Row]:
    """A row for each sampler of this model: how many rows of each batch have other tokens than alone."""
    options: dict[str, Any] = {"max_new_tokens": new, "temperature": 0, "logprobs": TOP, "stop_ids": []}
    alone: list[pardec.Result] = []
    for spec in SAMPLERS[name]:
        if spec not in DRAFTED:
            alone = [model.generate(input_ids=[ids], sampler=spec, **options) for ids in prompts]
        other, largest, gaps = {}, 0.0, []
        for size in SIZES:
            together = model.generate(input_ids=prompts[:size], sampler=spec, **options)
            assert together.logprobs is not None
            other[str(size)] = 0
            for one, row, listed in zip(alone, together.tokens, together.logprobs, strict=False):
                assert one.logprobs is not None
                own, end = one.logprobs[0], first_other(one.tokens[0], row)
                largest = max(largest, farthest(own, listed, new if end is None else end))
                if end is not None:
                    other[str(size)] += 1
                    gaps.append(float(own.own[end]) - chance(own, end, row[end]))
        print(f"{name}, {way}, {spec}: {other}, {largest:.2g}, {sorted(gaps)}", flush=True)
        gap = max(gaps, default=None)
        yield {"model": name, "way": way, "sampler": spec, "other": other, "largest": largest, "gap": gap}


def first_other(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The index of the first token that differs; None if the lists are equal."""
    return next((at for at, (one, two) in enumerate(zip(tokens, others, strict=True)) if one != two), None)


def farthest(one: TokenLogprobs, other: TokenLogprobs, end: int) -> float:
    """The largest difference of a log-probability, over the tokens that both list at the positions up to `end`."""
    same = one.ids[: end + 1, :, None] == other.ids[: end + 1, None]
    apart = np.abs(one.top[: end + 1, :, None] - other.top[: end + 1, None])
    return float(apart[same].max())


def chance(listed: TokenLogprobs, at: int, token: int) -> float:
    """The log-probability of a token at a position; -inf where it is not among those that are listed."""
    found = listed.top[at, listed.ids[at] == token]
    return float(found[0]) if len(found) else -math.inf


def page(data: Row) -> str:
    lines = [
        "# Rounding",
        "",
        "Made by `python benchmarks/numerics.py`, whose docstring says what is compared, each part when and where it",
        "says.",
        "",
    ]  # fmt: skip
    if rows := data.get("logits"):
        lines += [
            "## Logits",
            "",
            f"{data['made']['logits']}.",
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
            f"{data['made']['shapes']}.",
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
            f"{data['made']['batches']}.",
            f"Greedy answers of {data['new']} tokens to prompts of unequal length: how many rows of a batch of 1 to 64 "
            "have other tokens than alone. `farthest`: the largest difference of a log-probability, of the "
            f"{TOP} likeliest tokens, up to the first token that differs. `gap`: by how much the token alone was "
            "likelier, alone, than the other one; the largest of all rows.",
            "",
            f"| model | computed in | sampler | {' | '.join(map(str, SIZES))} | farthest | gap |",
            f"|---|---|---|{'---|' * len(SIZES)}---|---|",
        ]
        lines += [
            f"| {row['model']} | {row['way']} | `{row['sampler']}` | "
            f"{' | '.join(str(row['other'][str(size)]) for size in SIZES)} | {row['largest']:.2g} | "
            f"{'' if row['gap'] is None else format(row['gap'], '.2g')} |"
            for row in rows
        ]
        reason = "In bfloat16 PyTorch's matmuls add in another order from some fifty positions on (with AMX)"
        lines += ["", f"{reason}; logits from 16 to 32 are steps of 0.125.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--only", choices=("logits", "shapes", "batches"))
    parser.add_argument("--models", nargs="+", choices=SAMPLERS, default=list(SAMPLERS), help="models of the batches")
    given = parser.parse_args()
    every = [json.loads(line)["turns"][0] for line in given.prompts.read_text(encoding="utf-8").splitlines()]
    file = HERE / "numerics.json"
    data: Row = json.loads(file.read_text(encoding="utf-8")) if given.only and file.is_file() else {}
    asked = f"--positions {given.positions} --new {given.new}"
    files = f"--model {given.model.name} --prompts {given.prompts.name}"
    run = f"`{files} {asked}` on {processor()}, torch {torch.__version__}; {datetime.now(UTC).date().isoformat()}"
    made = data.setdefault("made", {})
    if given.only in (None, "logits", "shapes"):
        models = {name: pardec.load(str(given.model), device="cpu", **ways) for name, ways in WAYS.items()}
        texts = answers(models["packed weights, float32 activations"], every[:: 480 // 60], given.positions)
    if given.only in (None, "logits"):
        data["logits"], made["logits"] = compared(texts, precise(given.model), models), run
    if given.only in (None, "shapes"):
        data["shapes"], made["shapes"] = shapes(texts[:4], models), run
    for name in given.models if given.only in (None, "batches") else ():
        where, ways = (str(given.model), WAYS) if name not in EMBEDDED else (name, TYPES)
        for way, options in ways.items():
            model = pardec.load(where, device="cpu", **options)
            prompts = batch_prompts(name, model, every)
            for row in batches(name, way, model, prompts, given.new):
                kept = [old for old in data.get("batches", ()) if key(old) != key(row)]
                data |= {"batches": sorted([*kept, row], key=key), "new": given.new}
                made["batches"] = run
                write(file, data)
    write(file, data)


def write(file: Path, data: Row) -> None:
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(page(data), encoding="utf-8")


def batch_prompts(name: str, model: pardec.Model, texts: list[str]) -> list[list[int]]:
    """The ids of 64 prompts of unequal length."""
    count = SIZES[-1]
    if name in EMBEDDED:
        return [chat_ids(model, problem.prompt) for problem in pardec.task("arithmetic").problems(n=count)]
    chosen = texts[:: len(texts) // count][:count]
    return [chat_ids(model, text)[-8 - at // 2 :] for at, text in enumerate(chosen)]


def key(row: Row) -> tuple[int, int, int]:
    """The place of a row among the batches."""
    name = row["model"]
    return list(SAMPLERS).index(name), list(WAYS).index(row["way"]), SAMPLERS[name].index(row["sampler"])


if __name__ == "__main__":
    main()
