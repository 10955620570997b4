"""Compares every drafter on held-out problems of an embedded autoregressive model, with targets for some of them.

    python benchmarks/speculation.py [-n 200] [--tasks arithmetic,lists,records,copies] [--specs SPEC ...]
        [--run FOLDER] [--out benchmarks/speculation]

Writes the figures to OUT.json and the page to OUT.md; `PAGE` explains the columns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pardec
from pardec.cards import list_drafters
from pardec.comparison import Table, metrics
from pardec.environment import processor
from pardec.samplers import registry
from pardec.tasks import Problem, Task
from pardec.tasks.lists import PHRASINGS

HERE = Path(__file__).resolve().parent
TASKS = ("arithmetic", "lists", "records", "copies")
COPIES = ("lists", "records", "copies")  # answers that repeat some or all of the prompt
TRAINED = {card.kind: card for card in list_drafters() if card.target == "tiny-llama"}  # drafters that read its states
NAMED = {"model": "model:name=tiny-llama-draft,k=5"}  # drafters that need an argument
NAMED |= {kind: f"{kind}:name={card.name}" for kind, card in TRAINED.items()}
NAMED |= {"auto": 'auto:model="eagle:name=tiny-llama-eagle",copy="lookup:k=7"'}
UNTRAINED = ("transfer", "falcon")  # no module of this kind ships
MORE = ("copyspec:suffix=3", "lookup:k=5,max_ngram=2", "model:name=tiny-llama-draft,k=5+dyspec")
TARGETS = (  # sampler, least acceptance length, tasks
    ("model:name=tiny-llama-draft,k=5", 3.0, TASKS),
    ("recycling", 1.5, COPIES),
    ("copyspec", 1.5, COPIES),
)
FIGURES = (
    "sampler",
    "exact",
    "problems",
    "failed",
    "accuracy",
    "nfe",
    "draft_forwards",
    "forwards_per_token",
    "acceptance_length",
    "acceptance_interval",
    "draft_depth",
    "acceptance_by_position",
    "fed_per_token",
    "padding",
    "tokens_per_second",
    "speed_up",
    "cost_ratio",
    "simulated_speed_up",
    "identical",
    "mismatches",
    "ties",
)
COLUMNS = (
    ("acceptance length", "acceptance_length", "{:.2f}"),
    ("95% interval", "acceptance_interval", "{0[0]:.2f}..{0[1]:.2f}"),
    ("draft length", "draft_depth", "{:.1f}"),
    ("forwards per token", "forwards_per_token", "{:.3f}"),
    ("draft forwards per problem", "draft_forwards", "{:.1f}"),
    ("positions per token", "fed_per_token", "{:.1f}"),
    ("identical", "identical", "{:.1%}"),
    ("simulated speed-up", "simulated_speed_up", "{:.2f}"),
    ("measured speed-up", "speed_up", "{:.2f}"),
)
PAGE = """# Speculative decoding with {model}

This page compares the drafters for autoregressive models on {problems} held-out problems of each task. Decoding is
greedy, in batches of {batch_size}, in float32 on one thread of a CPU ({processor}). It is made by `{command}`.

{results}

The tasks are those of pardec; `copies` are the problems of `lists` that ask to repeat the list, so that the answer
stands in the prompt. Each drafter runs with its default parameters, and some with others. Columns:

- `acceptance length`: tokens gained per round of drafting and verifying, the verifier's own token included, the round
  of the prompt left out, and the interval of a bootstrap over problems.
- `draft length`: tokens of the longest drafted path per round.
- `forwards per token` of the target model; `draft forwards per problem` of the draft model.
- `positions per token`: positions computed in the target's forwards, per token.
- `identical`: the share of problems whose tokens all equal those of `sequential`.
- `simulated speed-up`: the speed-up if the cost of a forward did not depend on the number of its positions.
  `measured speed-up`: tokens per second over those of the first row.

Drafters whose intervals overlap are not ranked. Those that read the target's states were trained for it on texts that
it wrote:

{trainings}

"""


class Copies(Task):
    """The problems of `lists` whose answer is the list itself."""

    name = "copies"
    summary = "repeat a list of three to eight items"
    lists = pardec.task("lists")
    prefixes = tuple(phrase.partition("{")[0] for phrase in PHRASINGS["copy"])

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        problems = self.lists.problems(split, 10 * n, seed)
        return [problem for problem in problems if str(problem.prompt).startswith(self.prefixes)][:n]

    def score(self, problem: Problem, text: str) -> float | None:
        return self.lists.score(problem, text)


def specs() -> list[str]:
    """Sequential decoding, every registered drafter, and `MORE`."""
    drafters = [card.name for card in registry.cards() if card.stage == "draft"]
    without = ("sequential", "zipar", *UNTRAINED)  # zipar is for images only
    names = [name for name in drafters if name not in without]
    return ["sequential", *(NAMED.get(name, name) for name in names), *MORE]


def measure(model: pardec.Model, task: str, options: argparse.Namespace) -> Table:
    """Every sampler on the problems of one task."""
    return pardec.compare(
        model,
        Copies() if task == "copies" else task,
        options.specs,
        limit=options.n,
        problem_seed=options.seed,
        batch_size=options.batch_size,
        max_new_tokens=128,
        replays=1 if options.run else 0,
        out=options.run and options.run / task,
        resume=options.run is not None,
        progress=True,
    )


def interval(rows: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """The 95% percentile interval of the acceptance length, resampled over problems with a fixed seed."""
    gained = [[gain for _, _, gain in metrics.rounds([row])] for row in rows]
    sums, counts = (np.array([of(some) for some in gained if some]) for of in (sum, len))
    if not len(sums):
        return None
    weights = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), metrics.DRAWS)
    low, high = np.percentile((weights @ sums) / (weights @ counts), (2.5, 97.5))
    return float(low), float(high)


def trainings() -> str:
    """A table of the drafters that read the target's states."""
    lines = ["| drafter | parameters | training | seconds on one core |", "|---|---|---|---|"]
    for kind, card in TRAINED.items():
        recipe = json.loads((Path(card.path) / "card.json").read_text(encoding="utf-8"))["recipe"]
        steps = f"{recipe['steps']} steps, {recipe['answer tokens']:,} answer tokens of {recipe['texts'].split(',')[0]}"
        lines.append(f"| `{kind}` | {card.parameters:,} | {steps} | {recipe['seconds']} |")
    return "\n".join(lines)


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of one task."""
    lines = [f"| sampler | {' | '.join(head for head, _, _ in COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        cells = ("" if row[name] is None else form.format(row[name]) for _, name, form in COLUMNS)
        lines.append(f"| `{row['sampler']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def results(tasks: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The best samplers of each task, and whether targets were reached, as a list."""
    lines = []
    for task, rows in tasks.items():
        best = []
        for name, figure in (
            ("longest acceptance length", "acceptance_length"),
            ("highest measured speed-up", "speed_up"),
        ):
            row = max(rows, key=lambda row: row[figure] or 0.0)
            best.append(f"{name} {row[figure] or 0.0:.2f} (`{row['sampler']}`)")
        lines.append(f"- {task}: {', '.join(best)}")
    shares = [row["identical"] for rows in tasks.values() for row in rows if row["identical"] is not None]
    if shares:
        lines.append(
            f"- tokens equal to those of `sequential` on {min(shares):.1%} of the problems or more, with every sampler"
        )
    for spec, least, names in TARGETS:
        reached = {
            task: row["acceptance_length"]
            for task in names
            for row in tasks.get(task, [])
            if row["sampler"] == spec and row["acceptance_length"] is not None
        }
        figures = (
            f"{task} {length:.2f} ({'reached' if length >= least else 'missed'})" for task, length in reached.items()
        )
        if reached:
            lines.append(f"- `{spec}`, target acceptance length of at least {least:.1f}: {', '.join(figures)}")
    return lines


def page(document: dict[str, Any]) -> str:
    """The page, from what the JSON file has."""
    tasks = document["tasks"]
    text = PAGE.format(**{**document, "results": "\n".join(results(tasks)), "trainings": trainings()})
    text += "\n".join(f"## {task}\n\n{markdown(rows)}" for task, rows in tasks.items())
    return text + "\n## Notes\n\n" + "\n".join(document["notes"]) + "\n" if document["notes"] else text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("-n", type=int, default=200, help="problems per task")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--specs", nargs="*", default=specs(), help="speed-ups are relative to the first")
    parser.add_argument("--out", type=Path, default=HERE / "speculation", help="path without suffix")
    parser.add_argument("--run", type=Path, help="folder that keeps the comparisons, and from which they continue")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu", dtype="float32")
    tasks: dict[str, list[dict[str, Any]]] = {}
    notes: dict[str, list[str]] = {}
    for task in options.tasks.split(","):
        table = measure(model, task, options)
        for row in table.rows:
            own = [each for each in table.run.rows if each["sampler"] == row["sampler"]]
            row["acceptance_interval"] = interval(metrics.successful(own))
        tasks[task] = [{name: row[name] for name in FIGURES} for row in table.rows]
        for note in table.notes:
            notes.setdefault(note, []).append(task)
        print(f"\n{task}\n\n{markdown(tasks[task])}")
    document = {
        "model": options.model,
        "problems": options.n,
        "seed": options.seed,
        "batch_size": options.batch_size,
        "command": " ".join(["python", "benchmarks/speculation.py", *sys.argv[1:]]),
        "torch": torch.__version__,
        "processor": processor(),
        "threads": 1,
        "tasks": tasks,
        "notes": [f"- {', '.join(names)}: {note}" for note, names in notes.items()],
    }
    print("\n".join([*results(tasks), *document["notes"]]))
    options.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(document))


if __name__ == "__main__":
    main()
