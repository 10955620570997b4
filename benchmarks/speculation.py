"""Compares every drafter on held-out problems of an embedded autoregressive model, and holds it to what it is to reach.

    python benchmarks/speculation.py [-n 200] [--tasks arithmetic,lists,records,copies] [--specs SPEC ...]
        [--run FOLDER] [--out benchmarks/speculation]

`copies` are the held-out problems of `lists` that ask for the list again: whole answers that stand in the prompt.
Greedy decoding in batches of 8, float32, one thread. Plain decoding is the first row, which the measured speed-up
refers to; every registered drafter runs as it is by default, and what stands in `MORE` beside it. A row of the table:
acceptance length (tokens gained a round, the prompt's left out), tokens drafted a round, forwards a token, forwards of
the drafter a problem, positions fed for each token, the share of problems of which every token is that of plain
decoding, and the speed-up, simulated and measured. Figures and tables are written to OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.comparison import Table
from pardec.environment import processor
from pardec.samplers import registry
from pardec.tasks import Problem, Task
from pardec.tasks.lists import PHRASINGS

HERE = Path(__file__).resolve().parent
TASKS = ("arithmetic", "lists", "records", "copies")
COPIES = ("lists", "records", "copies")  # answers that repeat some or all of what the prompt says
NAMED = {"model": "model:name=tiny-llama-draft,k=5"}  # a drafter that needs an argument
MORE = ("copyspec:suffix=3", "lookup:k=5,max_ngram=2", "model:name=tiny-llama-draft,k=5+dyspec")
BARS = (  # the least acceptance length, and on what
    ("model:name=tiny-llama-draft,k=5", 3.0, TASKS),
    ("recycling", 1.5, COPIES),
    ("copyspec", 1.5, COPIES),
)
KEPT = (
    "sampler",
    "exact",
    "problems",
    "failed",
    "accuracy",
    "nfe",
    "draft_forwards",
    "forwards_per_token",
    "acceptance_length",
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
    ("drafted", "draft_depth", "{:.1f}"),
    ("forwards a token", "forwards_per_token", "{:.3f}"),
    ("drafter's forwards", "draft_forwards", "{:.1f}"),
    ("fed a token", "fed_per_token", "{:.1f}"),
    ("identical", "identical", "{:.1%}"),
    ("simulated speed-up", "simulated_speed_up", "{:.2f}"),
    ("measured speed-up", "speed_up", "{:.2f}"),
)


class Copies(Task):
    """The problems of `lists` that ask for the list again."""

    name = "copies"
    summary = "a list of three to eight items, again"
    lists = pardec.task("lists")
    begins = tuple(phrase.partition("{")[0] for phrase in PHRASINGS["copy"])

    def problems(self, split: str = "heldout", n: int = 50, seed: int = 7) -> list[Problem]:
        found = self.lists.problems(split, 10 * n, seed)
        return [problem for problem in found if str(problem.prompt).startswith(self.begins)][:n]

    def score(self, problem: Problem, text: str) -> float | None:
        return self.lists.score(problem, text)


def specs() -> list[str]:
    """Plain decoding, every registered drafter, and more."""
    drafters = [card.name for card in registry.cards() if card.stage == "draft"]
    names = [name for name in drafters if name not in ("sequential", "zipar")]  # the latter draws pictures only
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


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows of one task."""
    lines = [f"| sampler | {' | '.join(head for head, _, _ in COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        cells = ("" if row[name] is None else form.format(row[name]) for _, name, form in COLUMNS)
        lines.append(f"| `{row['sampler']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def bars(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line for each acceptance length that is to be reached, and was measured."""
    lines = []
    for spec, least, tasks in BARS:
        for task in tasks:
            for row in found.get(task, []):
                if row["sampler"] == spec and row["acceptance_length"] is not None:
                    reached = row["acceptance_length"]
                    verdict = "reached" if reached >= least else "missed"
                    lines.append(f"- `{spec}` on {task}: {reached:.2f}, at least {least:.1f} is asked: {verdict}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("-n", type=int, default=200, help="problems a task")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--specs", nargs="*", default=specs(), help="the first is what the speed-up refers to")
    parser.add_argument("--out", type=Path, default=HERE / "speculation", help="without its ending")
    parser.add_argument("--run", type=Path, help="folder that keeps the comparisons, and goes on with them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu", dtype="float32")
    found: dict[str, list[dict[str, Any]]] = {}
    notes: list[str] = []
    for task in options.tasks.split(","):
        table = measure(model, task, options)
        found[task] = [{name: row[name] for name in KEPT} for row in table.rows]
        notes += [f"- {task}: {note}" for note in table.notes]
        print(f"\n{task}\n\n{markdown(found[task])}")
    held = bars(found)
    print("\n".join([*held, *notes]))
    head = {"model": options.model, "problems": options.n, "seed": options.seed, "batch_size": options.batch_size}
    head |= {"command": " ".join(["python", "benchmarks/speculation.py", *sys.argv[1:]]), "torch": torch.__version__}
    head |= {"processor": processor(), "threads": 1}
    options.out.with_suffix(".json").write_text(json.dumps({**head, "tasks": found, "notes": notes}, indent=1) + "\n")
    parts = [f"# Drafting for {options.model}\n", f"{options.n} held-out problems a task; `{head['command']}`.\n"]
    parts += ["\n".join(held) + "\n"] if held else []
    parts += [f"## {task}\n\n{markdown(rows)}" for task, rows in found.items()]
    parts += ["## Notes\n", "\n".join(notes) + "\n"] if notes else []
    options.out.with_suffix(".md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
