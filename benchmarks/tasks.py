"""Measures how many held-out problems the embedded models answer exactly, and in how many forwards.

    python benchmarks/tasks.py [--models tiny-dream,...] [-n 200] [--out FILE.json] [--cards]

Rows stop at their first end token: blocks decoded after it change nothing before it. With `--cards` the figures are
written into the models' cards too.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import pardec

ROOT = Path(__file__).resolve().parents[1]
SPECS = {
    True: ("sequential", "threshold:tau=0.9", "threshold:tau=0.9@dual"),  # masked models
    False: ("sequential", "model:name=tiny-llama-draft"),
}
TASKS = ("arithmetic", "lists", "records")
MASKED_TASKS = ("chains", "grids", "insert", "remove", "shuffle", "replace", "sort", "stories")  # masked models only


def stopping(sampler: str) -> str:
    """The spec with `eos`."""
    body, mark, cache = sampler.partition("@")
    return f"{body}+eos{mark}{cache}"


def measure(model: pardec.Model, task: str, count: int, seed: int, batch: int) -> list[dict[str, Any]]:
    """One row per sampler: the share of problems answered exactly, and mean forwards per problem."""
    masked = model.language_model.decoding_config.masked
    arguments: dict[str, Any] = {"limit": count, "problem_seed": seed, "batch_size": batch}
    arguments |= {"max_new_tokens": pardec.task(task).tokens, **({"block_length": 32} if masked else {})}
    specs = [spec for spec in SPECS[masked] if spec != f"model:name={model.name}"]
    samplers = {stopping(spec) if masked else spec: spec for spec in specs}
    table = pardec.compare(model, task, list(samplers), references=False, replays=0, **arguments)
    return [
        {
            "model": model.name,
            "task": task,
            "sampler": samplers[row["sampler"]],
            "problems": row["problems"],
            "exact": row["accuracy"],
            "forwards": round(row["nfe_to_end"], 2),
        }
        for row in table.rows
    ]


def write_figures(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Writes the rows of one model into its card."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from text_training.export import write_card

    card = json.loads((folder / "card.json").read_text())
    card["accuracy"] = {}
    for row in rows:
        figures = card["accuracy"].setdefault(row["sampler"], {"problems": {}})
        task = row["task"]
        figures[task], figures[f"{task}_nfe"], figures["problems"][task] = (
            row["exact"],
            row["forwards"],
            row["problems"],
        )
    write_card(folder, card)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default="tiny-llama,tiny-llama-draft,tiny-dream,tiny-llada")
    parser.add_argument("-n", type=int, default=200, help="problems per task")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cards", action="store_true", help="write the figures into the models' cards")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.models.split(","):
        model = pardec.load(name, device="cpu", dtype="float32")
        masked = model.language_model.decoding_config.masked
        for task in TASKS + MASKED_TASKS * masked:
            for row in measure(model, task, options.n, options.seed, options.batch_size):
                rows.append(row)
                figures = f"{100 * row['exact']:5.1f}% exact, {row['forwards']:5.2f} forwards"
                print(f"{name:16} {task:10} {row['sampler']:28} {figures}", flush=True)
        if options.cards:
            write_figures(Path(str(model.path)), [row for row in rows if row["model"] == model.name])
    if options.out:
        options.out.write_text(
            json.dumps({"torch": torch.__version__, "seed": options.seed, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
