"""Measures the claims of papers on a masked model that writes text, by its answers to instructions.

    python benchmarks/text_claims.py --model FOLDER --parent FILE.gguf --prompts held_out.jsonl --run runs/text-claims
        [--count 200] [--max-new-tokens 64] [--points 5] [--only answers ...] [--out benchmarks/claims.md]

Prompts are lines of JSON with `turns`, as for masked_answers.py. Each method is swept, and judged against `threshold`
swept over tau.

answers: every method on the prompts. The rows are decoded once and judged twice. *Likelihood* is the parent's geometric
    mean probability of the answer's tokens (0 for an empty answer), encoded with the parent's tokenizer where the two
    differ. *Agreement* is the share of tokens that the model's own sequential decoding has at the same place.
template: Prophet where the answer's place is known: a sentence to repeat with one word changed, after fixed words.
filler: Prophet on the same sentences in a canvas twice as long as asked for, most of it after the answer.

Sections are written to the page of claims.py, which keeps its others; a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import claims
import curves
import masked_answers
import torch

import pardec
from pardec.comparison import curve_table, metrics
from pardec.comparison.run import Run
from pardec.tasks import FileTask
from pardec.training.texts import chat_ids

METHODS = (
    "credit", "localleap", "prophet", "klass", "hierarchy", "factor", "entropy_bound", "freedave", "lopa", "multiblock",
    "@dkv", "@dual", "@prefix",
)  # fmt: skip
RIGHT = {  # what the column says in place of exact answers
    "text-likelihood": "Here *right* is the parent's geometric mean probability per token.",
    "text-agreement": "Here *right* is the share of tokens that sequential decoding has at the same place.",
}
OPENING = "The new sentence is:"
ANSWER = 16  # tokens of the gap in a template
Row = Mapping[str, Any]
Quality = Callable[[Row], float]


def specs() -> list[str]:
    """The methods with the rule that ends a row."""
    return [f"{name}+eos" if name[0] != "@" else f"eos{name}" for name in METHODS]


def likelihood(parent: pardec.Model, model: pardec.Model, asked: Sequence[str]) -> Quality:
    """The parent's geometric mean probability per token of an answer."""

    @cache  # many settings give the same answer
    def probability(problem: int, tokens: tuple[int, ...]) -> float:
        answer = masked_answers.in_tokens_of(parent, model, list(tokens))
        nats = masked_answers.nats(parent, chat_ids(parent, asked[problem]), answer)
        return 0.0 if nats is None else math.exp(nats)

    return lambda row: probability(int(row["problem"]), tuple(before_end(model, row["tokens"])))


def agreement(model: pardec.Model, sequential: Sequence[Row]) -> Quality:
    """The share of equal tokens, over the longer of the two answers; 1 where both are empty."""
    own = {row["problem"]: before_end(model, row["tokens"]) for row in sequential}

    def quality(row: Row) -> float:
        answer, other = before_end(model, row["tokens"]), own[row["problem"]]
        longer = max(len(answer), len(other))
        return sum(a == b for a, b in zip(answer, other, strict=False)) / longer if longer else 1.0

    return quality


def before_end(model: pardec.Model, tokens: Sequence[int]) -> list[int]:
    """The tokens before the first end token."""
    ends = model.language_model.decoding_config.eos_ids
    return list(tokens[: next((at for at, token in enumerate(tokens) if token in ends), len(tokens))])


def judged(run: Run, quality: Quality) -> Run:
    """The run with other scores."""
    return replace(
        run, rows=[{**row, "score": quality(row)} if row in metrics.successful([row]) else row for row in run.rows]
    )


def sections(runs: Mapping[str, Run], model: Path) -> dict[str, str]:
    """The tables of each run, and what the columns mean."""
    made = {}
    for name, run in runs.items():
        (found,) = curve_table.curve_table(run)
        described = {"model": model.name, "seed": 7, "generate": {**run.config["generate"]}}
        section = curves.with_bare_names({**described, **found})
        made[name] = claims.body(section, f"{masked_answers.about(model).strip()} {RIGHT.get(name, '')}")
        made.setdefault(claims.COLUMNS, curves.legend(section).strip())
    return made


def compared(
    given: argparse.Namespace,
    model: pardec.Model,
    name: str,
    problems: list[dict[str, Any]],
    samplers: Sequence[str],
    **more: Any,
) -> Run:
    """Decodes all problems with every setting of the samplers."""
    folder = given.run / name
    folder.mkdir(parents=True, exist_ok=True)
    file = given.run / f"{name}.jsonl"
    file.write_text("".join(json.dumps(problem) + "\n" for problem in problems), encoding="utf-8")
    table = pardec.compare(
        model, FileTask(file, scorer="exact", name=name), samplers, sweep=True, points=given.points, replays=0,
        limit=len(problems), batch_size=given.batch, out=folder, resume=True, chat=True, **more,
    )  # fmt: skip
    return table.run


def run_answers(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    asked = masked_answers.first_turns(given)
    problems = [{"id": str(number), "prompt": text, "answer": ""} for number, text in enumerate(asked)]
    run = compared(given, model, "answers", problems, specs(), max_new_tokens=given.max_new_tokens)
    baseline = next(entry["baseline"] for entry in run.config["samplers"] if entry.get("baseline"))
    sequential = [row for row in metrics.successful(run.rows) if row["sampler"] == baseline]
    parent = pardec.load(given.parent, device="cpu", dtype="float32")
    qualities = {"likelihood": likelihood(parent, model, asked), "agreement": agreement(model, sequential)}
    return sections({f"text-{name}": judged(run, quality) for name, quality in qualities.items()}, given.model)


def run_template(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    opening = model.tokenizer(OPENING, add_special_tokens=False)["input_ids"]
    gap = model.tokenizer.mask_token * ANSWER
    problems = [
        {"id": str(number), "prompt": text, "answer": f"{OPENING} {answer}", "template": OPENING + gap}
        for number, (text, answer) in enumerate(masked_answers.copies(min(60, given.count)))
    ]
    prophet = f"prophet:start={len(opening)},length={ANSWER}"
    samplers = [f"fixed:steps={ANSWER}+{prophet}+eos", f"{prophet}+eos"]
    return sections({"text-template": compared(given, model, "template", problems, samplers)}, given.model)


def run_filler(given: argparse.Namespace, model: pardec.Model) -> dict[str, str]:
    problems = [
        {"id": str(number), "prompt": text, "answer": answer}
        for number, (text, answer) in enumerate(masked_answers.copies(min(60, given.count)))
    ]
    new = 2 * given.max_new_tokens
    samplers = [f"fixed:steps={new}+prophet", "prophet"]
    run = compared(given, model, "filler", problems, samplers, max_new_tokens=new)
    return sections({"text-filler": run}, given.model)


PARTS = {"answers": run_answers, "template": run_template, "filler": run_filler}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the masked model")
    parser.add_argument("--parent", required=True, help="the autoregressive model that judges: a file, folder or name")
    parser.add_argument("--prompts", type=Path, required=True, help="lines of JSON with turns")
    parser.add_argument("--run", type=Path, required=True, help="folder of the comparisons")
    parser.add_argument("--count", type=int, default=200, help="prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--points", type=int, default=5, help="settings of a curve at most")
    parser.add_argument("--batch", type=int, default=8, help="rows decoded together")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--out", type=Path, default=claims.FOLDER / "claims.md", help="the page")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    model = pardec.load(given.model, device="cpu", dtype="float32")
    if not model.language_model.decoding_config.masked:
        parser.error("--model is a masked model")
    for name in given.only:
        measured = PARTS[name](given, model)
        page = given.out.read_text(encoding="utf-8") if given.out.is_file() else ""
        if claims.COLUMNS in claims.sections(page):  # keep the page's first measurement
            del measured[claims.COLUMNS]
        claims.write(given.out, measured)


if __name__ == "__main__":
    main()
