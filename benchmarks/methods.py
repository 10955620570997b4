"""Measures every method of the registry against the same decoding without it, in pairs, on an embedded model.

    python benchmarks/methods.py [NAME ...] [--again] [--write]

Methods without a row are measured, or those named; `--again` measures rows that are there too. Each row is saved once
it is measured, to `samplers/measured.json`, so that the same command continues. `--write` only writes the page,
`benchmarks/methods.md`, and the reasons of this file into the rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from method_plans import Plan, plans
from speculation import Copies

import pardec
from pardec.comparison import metrics
from pardec.environment import processor
from pardec.requests.images import with_defaults
from pardec.samplers import measured, registry
from pardec.samplers.cards import FAMILY_LABELS, Card
from pardec.samplers.measured import Interval, Measured
from pardec.tasks import Problem, Task

HERE = Path(__file__).resolve().parent
PERCENTILES = (0.5, 99.5)  # 99% intervals: the page makes about as many comparisons as there are methods


class Run(NamedTuple):
    """The score and the cost of decoding one problem."""

    score: float
    forwards: float
    draft_forwards: float
    positions: float
    seconds: float


def decode(model: pardec.Model, task: Task, problem: Problem, seed: int, spec: str, arguments: dict[str, Any]) -> Run:
    """One problem: its score and costs. Seconds are the process's own, since other work may share the machine."""
    if task.answers == "text":
        arguments = {"max_new_tokens": task.length(problem), **arguments}
    elif model.imaging is not None:
        arguments = with_defaults(model.imaging, arguments)
    given = {"prompt": [problem.prompt]} if problem.label is None else {"label": [problem.label]}
    start = time.process_time()
    result = model.generate(**given, **{**arguments, "sampler": spec, "seed": [seed]})
    seconds = time.process_time() - start
    answer: Any = result.text[0] if task.answers == "text" else result.images[0]
    drafted = result.draft_forwards[0] if result.draft_forwards else 0
    return Run(float(task.score(problem, answer) or 0), result.nfe[0], drafted, result.tokens_fed[0], seconds)


def measure(card: Card, plan: Plan, model: pardec.Model) -> dict[str, Any]:
    """The row of a method: each problem with and without it, one right after the other, in alternating order."""
    task: Task = Copies() if plan.task == Copies.name else pardec.task(plan.task)
    specs = plan.spec, plan.plain
    problems = task.problems(n=plan.problems)
    runs: dict[str, list[Run]] = {"method": [], "plain": []}
    for spec in specs:  # the first decode includes one-time setup
        decode(model, task, problems[0], 0, spec, dict(plan.arguments))
    for number, problem in enumerate(problems):
        pairs = list(zip(runs, specs, strict=True))
        for name, spec in pairs if number % 2 else reversed(pairs):
            runs[name].append(decode(model, task, problem, number, spec, dict(plan.arguments)))
    method, plain = (np.array(runs[name]).T for name in runs)
    return {
        **identity(card, plan),
        "problems": plan.problems,
        "arguments": dict(plan.arguments),
        "right": round(float(method[0].mean()), 4),
        "plain_right": round(float(plain[0].mean()), 4),
        "quality": rounded(resampled(method[0] - plain[0])),
        "forwards": rounded(resampled(method[1], plain[1])),
        "positions": rounded(resampled(method[3], plain[3])),
        "seconds": rounded(resampled(method[4], plain[4])),
        "per_problem": [round(float(figure.mean()), 2) for figure in method[1:4]],
    }


def identity(card: Card, plan: Plan) -> dict[str, Any]:
    """Identifies the measurement of a row; a changed plan needs a new row."""
    compared = {"spec": plan.spec or None, "plain": plan.plain}
    return {"name": card.name, "family": card.family, "model": plan.model, "task": plan.task, **compared}


def resampled(values: Any, over: Any = None) -> Interval:
    """The mean of the values, or their sum divided by the sum of others, with a bootstrap interval over problems."""
    over = np.ones(len(values)) if over is None else over
    share = np.full(len(values), 1 / len(values))
    weights = np.random.default_rng(0).multinomial(len(values), share, metrics.DRAWS)
    low, high = np.percentile((weights @ values) / (weights @ over), PERCENTILES)
    return float(values.sum() / over.sum()), float(low), float(high)


def rounded(interval: Interval) -> list[float]:
    return [round(bound, 4) for bound in interval]


def every() -> Iterator[tuple[Card, Plan]]:
    """Every method with each of its plans, in the order of the registry."""
    return ((card, plan) for card in registry.cards() for plan in plans(card))


def key(values: dict[str, Any]) -> tuple[str | None, ...]:
    """The key by which a row is found."""
    return tuple(values[name] for name in ("name", "family", "model", "task", "spec", "plain"))


def complete(kept: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that the registry asks for, with today's reasons; those not measured yet without figures."""
    by_key = {key(values): values for values in kept}
    rows = []
    for card, plan in every():
        own = identity(card, plan)
        values = {**by_key.get(key(own), own), "needs": plan.needs, "reason": plan.reason}
        explained = measured.row(values).verdict not in ("gains", "faster", "level", measured.NOT_MEASURED)
        rows.append(values if explained else values | {"reason": ""})
    return rows


COLUMNS = ("method", "verdict", "measured with", "right", "forwards", "positions", "seconds", "why")
PAGE = """# Every method: what it gains or costs

`python benchmarks/methods.py`

Each method of the registry is measured on a task of its kind, with an embedded model, against the same decoding without
it: a drafter against `sequential`, a select against `threshold`, any other stage against its spec without the method.
{processor}, one thread, float32, one problem at a time, torch {torch}; images with their checkpoint's temperature,
filters and guidance. Each problem is decoded with and without the method, one right after the other, in alternating
order; seconds are the process's own. Other work ran on the same core: the intervals include what it disturbed, and the
rows that compare a method with itself ({itself}) show how much that is.

- `right`: answers that are exactly right, and in brackets without the method; then the difference in points.
- `forwards`: per problem, `+` those of a draft model, and how many times those without the method.
- `positions`, `seconds`: how many times those without the method; below 1 it saves. Positions of a draft model are left
  out.
- Intervals are the 99% intervals of a bootstrap over problems: the page makes more than 150 comparisons.

The verdict follows from the intervals:

- **loses**: the interval of the difference in quality lies below 0, or that of the seconds above {above:.2f} while
  quality is not better;
- **gains**: it does not lose, and the interval of the seconds lies below {below:.2f}, or quality is better in no more
  time;
- **faster**: it takes less time, and with fewer than {enough} problems the quality is open: what differs in one of ten
  answers may not have shown;
- **level**: nothing is shown, or better quality takes more time;
- **not measured**: there are no figures yet;
- **needs ...**: it does not gain here, and its gain depends on what these models or this machine lack: a GPU, a second
  device, a long context, or a checkpoint trained for it.

The models have at most 4 million parameters, and a forward of them takes a few milliseconds at most: what a method
computes beside the forwards counts, and so does every position. A forward of a large model takes as long as reading its
weights: there a forward that is saved is worth more, and positions that are added cost less.

{counts}
"""


def page(document: dict[str, Any]) -> str:
    """The page of the rows of `measured.json`."""
    rows = [measured.row(values) for values in document["rows"]]
    stages = {(card.name, card.family): card.stage for card in registry.cards()}
    seen = set[tuple[str, str]]()
    first: list[Measured] = []
    further: list[Measured] = []
    for row in rows:
        (further if (row.name, row.family) in seen else first).append(row)
        seen.add((row.name, row.family))
    verdicts = ["needs" if row.verdict.startswith("needs ") else row.verdict for row in first]
    words = ("gains", "faster", "level", "loses", "needs", measured.NOT_MEASURED)
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in words)
    itself = ", ".join(f"`{row.name}`" for row in first if row.problems and same(row))
    text = PAGE.format(
        processor=document["processor"],
        torch=document["torch"],
        above=1 + measured.MARGIN,
        below=1 - measured.MARGIN,
        enough=measured.ENOUGH,
        itself=itself,
        counts=f"{len(first)} methods: {counts}.",
    )
    for (family, stage), group in groupby(first, lambda row: (row.family, stages[row.name, row.family])):
        text += f"\n## {stage}, for {FAMILY_LABELS[family]}\n\n{table(list(group))}"
    return text + f"\n## Methods made for text, on images\n\n{table(further)}"


def same(row: Measured) -> bool:
    """Whether a row compares a method with itself."""
    spec, plain = (registry.resolve(one, row.family).spec for one in (row.spec, row.plain))  # type: ignore[arg-type]
    return str(spec) == str(plain)


def table(rows: Sequence[Measured]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)]) + "\n"


def cells(row: Measured) -> Iterator[str]:
    yield f"`{row.name}`"
    yield f"**{row.verdict}**"
    if not row.problems:
        yield from ("", "", "", "", "", row.reason)
        return
    arguments = "".join(f", {name.replace('_', ' ')} {value}" for name, value in (row.arguments or {}).items())
    yield f"`{row.spec}`, without it `{row.plain}`; {row.model}, {row.task}{arguments}"
    change = "{:+.0f} ({:+.0f}..{:+.0f})".format(*(100 * bound for bound in row.quality))
    yield f"{row.right:.0%} ({row.plain_right:.0%}) of {row.problems}; {change}"
    forwards, drafted, _ = row.per_problem
    yield f"{forwards:.1f}{f' + {drafted:.1f}' if drafted else ''}; {row.forwards[0]:.2f}"
    yield f"{row.positions[0]:.2f}"
    yield "{:.2f} ({:.2f}..{:.2f})".format(*row.seconds)
    yield row.reason


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("methods", nargs="*", metavar="NAME", help="methods to measure (default: all without a row)")
    parser.add_argument("--again", action="store_true", help="measure methods that have a row already, too")
    parser.add_argument("-n", type=int, help="problems of each row at most (default: those of its plan)")
    parser.add_argument("--rows", type=Path, default=measured.FILE, help="the file of the rows")
    parser.add_argument("--out", type=Path, default=HERE / "methods.md", help="the page")
    parser.add_argument("--write", action="store_true", help="only write the page")
    options = parser.parse_args()
    if unknown := set(options.methods) - {card.name for card in registry.cards()}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; `pardec list samplers` lists the methods")
    torch.set_num_threads(1)
    kept = json.loads(options.rows.read_text()) if options.rows.exists() else {"rows": []}
    models: dict[str, pardec.Model] = {}
    for card, plan in every() if not options.write else ():
        known = {key(values): values for values in kept["rows"] if values.get("problems")}
        own = key(identity(card, plan))
        if not plan.model or (options.methods and card.name not in options.methods):
            continue
        if own in known and not options.again:
            continue
        if plan.model not in models:
            models[plan.model] = pardec.load(plan.model, device="cpu", dtype="float32", **plan.loading)
        model = models[plan.model]
        if options.n:
            plan = replace(plan, problems=min(options.n, plan.problems))
        known[own] = measure(card, plan, model)
        print(f"{card.family} {card.stage} {card.name}: {measured.row(known[own])}", flush=True)
        before = kept.get("processor", "")  # the processor of rows that stay
        named = before if processor() in before else f"{before} or {processor()}" if before else processor()
        kept = {"processor": named, "torch": torch.__version__, "rows": complete([*known.values()])}
        save(options.rows, kept)
    kept["rows"] = complete(kept["rows"])
    save(options.rows, kept)
    options.out.write_text(page(kept))


def save(path: Path, document: dict[str, Any]) -> None:
    """One line per row, so that a change shows what changed."""
    lines = ",\n".join(json.dumps(values, sort_keys=False) for values in document["rows"])
    rest = {name: value for name, value in document.items() if name != "rows"}
    path.write_text(json.dumps(rest)[:-1] + (", " if rest else "") + f'"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
