"""Measures how many held-out problems an embedded model answers exactly, and in how many forwards.

    python benchmarks/tasks.py [--models tiny-dream,tiny-llada] [-n 200] [--out benchmarks/tasks.json] [--cards]

Forwards are counted up to the one that completes a row's first end token. With `--cards` the figures go into the
models' cards too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

import pardec

ROOT = Path(__file__).resolve().parents[1]
SPECS = ("sequential", "threshold:tau=0.9", "threshold:tau=0.9@dual")
TASKS = ("arithmetic", "lists", "records")


def forwards(result: pardec.Result, row: int) -> int:
    """Forwards up to the one that completed everything through the first end token."""
    start = result.prompts[row]
    return int(result.trace.commit_step[row, start : start + len(result.tokens[row])].max()) + 1


def measure(model: pardec.Model, task: str, spec: str, count: int, seed: int, batch: int) -> dict[str, Any]:
    """Share of problems answered exactly, and mean forwards a problem."""
    made = pardec.task(task)
    problems = made.problems(split="heldout", n=count, seed=seed)
    scores, needed = [], []
    for start in range(0, count, batch):
        part = problems[start : start + batch]
        result = model.generate([problem.prompt for problem in part], sampler=spec, max_new_tokens=64)
        assert result.text is not None
        scores += [made.score(problem, text) for problem, text in zip(part, result.text, strict=True)]
        needed += [forwards(result, row) for row in range(len(part))]
    return {
        "model": model.name,
        "task": task,
        "sampler": spec,
        "problems": count,
        "exact": sum(score == 1 for score in scores) / count,
        "forwards": round(statistics.mean(needed), 2),
    }


def write_figures(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Puts the rows of one model into its card."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from text_training.export import write_card

    card = json.loads((folder / "card.json").read_text())
    card["accuracy"] = {}
    for row in rows:
        found = card["accuracy"].setdefault(row["sampler"], {"problems": {}})
        task = row["task"]
        found[task], found[f"{task}_nfe"], found["problems"][task] = row["exact"], row["forwards"], row["problems"]
    write_card(folder, card)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="tiny-dream,tiny-llada")
    parser.add_argument("-n", type=int, default=200, help="problems a task")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cards", action="store_true", help="write the figures into the models' cards")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.models.split(","):
        model = pardec.load(name, device="cpu", dtype="float32")
        for task in TASKS:
            for spec in SPECS:
                rows.append(measure(model, task, spec, options.n, options.seed, options.batch_size))
                r = rows[-1]
                print(f"{name:10} {task:10} {spec:22} {100 * r['exact']:5.1f}% exact, {r['forwards']:5.2f} forwards")
        if options.cards:
            write_figures(Path(str(model.path)), [row for row in rows if row["model"] == model.name])
    if options.out:
        options.out.write_text(
            json.dumps({"torch": torch.__version__, "seed": options.seed, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
