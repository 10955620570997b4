"""Compares greedy tokens of every drafter, shape and length controller with those of `sequential`.

    python benchmarks/greedy_equality.py [--model tiny-llama] [--drafters SPEC ...] [-n 200] [--max-new-tokens 48]
        [--prompts QUESTIONS.jsonl] [--cut TOKENS] [--batches 6 1] [--pairs all|apart] [--activations int8]
        [--run FOLDER] [--out NAME]

Prompts are problems of tiny-llama's tasks, or first turns of a file in the chat template, as in Spec-Bench's questions.
Batches of more than one row hold prompts of unequal length. With `--pairs apart` each shape goes without a length
controller and each controller with a chain; else every shape goes with every controller. Results are kept in
FOLDER, and the same command continues from there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.cards import list_drafters
from pardec.environment import processor
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.training.texts import chat_ids

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from real_text import read_prompts  # noqa: E402

TASKS = ("arithmetic", "lists", "records", "chains")
WITHOUT = ("zipar", "auto", "sequential")  # for images; two drafters of this list; what the others are compared with
PAGE = """# Greedy tokens of {model} with every drafter, shape and length controller

{cells} combinations, {wrong} of them with tokens other than `sequential` gives. Each decoded {prompts} prompts,
{tokens} tokens at most, float32, {processor}, torch {torch}. A combination
that is refused is not listed, and one that is another's default is decoded once.

`{command}`

| drafter | rows a batch | combinations | prompts decoded | unequal |
|---|---|---|---|---|
"""


def drafters(model: str) -> list[str]:
    """Every exact drafter that the model can run, with the modules that ship for it."""
    modules = {card.kind: card.name for card in list_drafters() if model.startswith(card.target)}
    specs = []
    for card in registry.cards():
        if card.stage != "draft" or card.exact == "relaxed" or card.name in WITHOUT:
            continue
        needs = {str(parameter["name"]) for parameter in card.parameters}
        if card.name == "model":
            specs += [f"model:name={model}-draft"] if model == "tiny-llama" else []
        elif "name" in needs:
            specs += [f"{card.name}:name={modules[card.name]}"] if card.name in modules else []
        else:
            specs.append(card.name)
    if "eagle" in modules:
        specs.append(f'auto:model="eagle:name={modules["eagle"]}",copy="lookup:k=7"')
    return specs


def combinations(drafter: str, pairs: str) -> Iterator[str]:
    """The drafter with each shape and length controller that works with it."""
    seen = set()
    shapes, lengths = ([card.name for card in registry.cards() if card.stage == stage] for stage in ("shape", "length"))
    for shape in ("", *shapes):
        for length in ("", *lengths):
            spec = "+".join(part for part in (drafter, shape, length) if part)
            if pairs == "apart" and length and shape not in ("", "chain"):
                continue
            try:
                whole = str(registry.resolve(spec, "ar").spec)
            except SpecError:
                continue
            if whole not in seen:
                yield spec
            seen.add(whole)


def prompts(model: pardec.Model, options: argparse.Namespace) -> list[list[int]]:
    """Token ids of each prompt."""
    if options.prompts is None:
        each = options.n // len(TASKS)
        texts = [str(problem.prompt) for name in TASKS for problem in pardec.task(name).problems("heldout", each, 7)]
    else:
        start = -4 * options.cut if options.cut else None
        texts = [prompt.text[start:] for prompt in read_prompts(options.prompts, options.n // 6)]
    return [chat_ids(model, text) for text in texts]


def decode(model: pardec.Model, spec: str, ids: list[list[int]], batch: int, new: int) -> list[list[int]]:
    """Tokens of each prompt, in batches of neighbours in a shuffled order, so that lengths differ."""
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0)).tolist()
    tokens: dict[int, list[int]] = {}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        result = model.generate(input_ids=[ids[row] for row in rows], sampler=spec, max_new_tokens=new)
        tokens |= dict(zip(rows, result.tokens, strict=True))
    return [tokens[row] for row in range(len(ids))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--drafters", nargs="*")
    parser.add_argument("-n", type=int, default=200, help="prompts")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's questions, in place of tiny-llama's tasks")
    parser.add_argument("--cut", type=int, help="about how many tokens to keep at the end of long prompts")
    parser.add_argument("--batches", nargs="*", type=int, default=[6, 1])
    parser.add_argument("--pairs", choices=["all", "apart"], default="all")
    parser.add_argument(
        "--activations", choices=["float32", "int8"], help="activations= of pardec.load, for packed weights"
    )
    parser.add_argument("--run", type=Path, default=Path("runs/greedy_equality"), help="folder of results so far")
    parser.add_argument("--out", type=Path, default=HERE / "greedy_equality", help="path without suffix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    how = {} if options.activations is None else {"activations": options.activations}
    model = pardec.load(options.model, device="cpu", dtype="float32", **how)
    ids = prompts(model, options)
    options.run.mkdir(parents=True, exist_ok=True)
    file = options.run / "rows.jsonl"
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["spec"], row["batch"]) for row in rows}
    expected = decode(model, "sequential", ids, 1, options.max_new_tokens)
    for drafter in options.drafters or drafters(model.name):
        for spec in combinations(drafter, options.pairs):
            for batch in options.batches:
                if (spec, batch) in done:
                    continue
                tokens = decode(model, spec, ids, batch, options.max_new_tokens)
                unequal = [at for at, (own, other) in enumerate(zip(tokens, expected, strict=True)) if own != other]
                rows.append({"drafter": drafter, "spec": spec, "batch": batch, "prompts": len(ids), "unequal": unequal})
                with file.open("a") as out:
                    out.write(json.dumps(rows[-1]) + "\n")
                if unequal:
                    print(spec, batch, unequal, flush=True)
        print(drafter, len(rows), flush=True)
    wrong = sum(bool(row["unequal"]) for row in rows)
    page = PAGE.format(
        model=model.name,
        cells=len(rows),
        wrong=wrong,
        prompts=len(ids),
        tokens=options.max_new_tokens,
        processor=processor(),
        torch=torch.__version__,
        command=" ".join(["python", "benchmarks/greedy_equality.py", *sys.argv[1:]]),
    )
    for drafter, batch in dict.fromkeys((row["drafter"], row["batch"]) for row in rows):
        own = [row for row in rows if (row["drafter"], row["batch"]) == (drafter, batch)]
        page += f"| `{drafter}` | {batch} | {len(own)} | {sum(row['prompts'] for row in own):,} | "
        page += f"{sum(len(row['unequal']) for row in own)} |\n"
    options.out.with_suffix(".md").write_text(page)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
