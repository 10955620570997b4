"""Sweeps samplers and caches of masked models over their quality parameters, on held-out problems of embedded models.

    python benchmarks/samplers.py --run runs/samplers [--models tiny-dream ...] [--tasks chains grids ...]
    python benchmarks/samplers.py --set hooks --run runs/hooks --out benchmarks/hooks.md

Each model and task is one `pardec.compare(..., sweep=True)`, kept with its report in a folder of `--run`; the same
command continues with what is not finished. Every sampler stops at the end token and decodes in blocks of 32. What is
measured replaces its section of `sections.json` in `--run`, from which the whole page `--out` is written. Of the page
`samplers.md` the first section is also `samplers.json`, from which `scripts/generate.py` makes the README's figure.
The set `hooks` has the methods of the stages block, branch, query and attention, and others of their year.
`--write` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import curves
import torch

from pardec.environment import processor
from pardec.samplers.ops.learned_filters import filter_names

FOLDER = Path(__file__).resolve().parent
CLAIMED = (  # methods whose papers promise to be better than a threshold, and every kind of cache
    "sequential", "factor", "entropy_bound", "klass", "learned", "credit", "localleap", "credit+localleap", "wino",
    "prophet", "@prefix", "@dual", "@vicinity:warmup=0", "@dkv",
)  # fmt: skip
OTHERS = (
    "timesteps", "origin", "carry", "entropy_threshold", "confident", "hierarchy", "margin+threshold",
    "leftmost+threshold", "random+fixed", "credit:free=true", "smoothing", "remdm", "edit", "fixed+prophet",
    "@dual:refresh=4", "@dkv:prompt=keep", "random+fixed@dkv_greedy", "credit+localleap@dual",
)  # fmt: skip


class Task(NamedTuple):
    """A task with its samplers and arguments."""

    problems: int
    max_new_tokens: int
    samplers: Sequence[str]
    points: int | None = None  # settings of a curve at most


TASKS = {
    "chains": Task(60, 192, (*CLAIMED, "hierarchy")),
    "chains-64": Task(200, 64, CLAIMED + OTHERS),
    "grids": Task(200, 32, CLAIMED),
    "arithmetic": Task(200, 64, CLAIMED),
    "parallel": Task(60, 32, ("factor", "entropy_bound", "klass", "credit", "wino", "@dual")),
}
HOOKS = (
    "dsb", "adablock", "dcd", "slowfast", "multiblock", "freedave", "lopa", "dawn", "dapd", "dus", "bound",
    "cumulative", "pc+fixed", "density+fixed", "above_mean+saber", "spacing+threshold", "threshold:fall=0.02",
    "entropy_threshold:floor=cosine", "freedave:subset=true", "adaptive_length", "dpad", "suffix", "@dual", "@spa",
    "@d2cache",
)  # fmt: skip
SETS = {
    "samplers": TASKS,
    "hooks": {
        "chains": Task(20, 256, HOOKS, points=4),
        "grids": Task(40, 256, HOOKS, points=5),
        "parallel": Task(12, 256, HOOKS, points=5),
    },
}


def stopping(sampler: str) -> str:
    """The spec with `eos`; a spec that is only a cache keeps it at the end."""
    body, mark, cache = sampler.partition("@")
    return f"{body}{'+' if body else ''}eos{mark}{cache}"


def page(document: dict[str, Any]) -> str:
    """The sections as Markdown."""
    lines = [
        "# Samplers for masked models\n",
        f"`{document['command']}`\n",
        "Each method is swept over its quality parameter; `threshold` and `fixed` always are. A method is judged by "
        "its curve against that of `threshold`: forwards at equal accuracy (95% interval of a paired bootstrap "
        "over problems), settings whose accuracy lies off the curve of `threshold` at equal forwards, and settings "
        "that another one dominates. [What the columns mean](#columns).\n",
    ]
    if len(document["sections"]) > 1:
        lines += [
            "## Forwards beside `threshold` at equal accuracy\n",
            "A curve's forwards over those of `threshold` where both reach the accuracy of sequential decoding less 1 "
            "point, with 95% intervals: below 1 it gains. A dash: the curve does not reach it.\n",
            curves.gains_of(document["sections"]),
            "The area under a curve (AUP) over that of `threshold`: above 1 it gains where `threshold` errs, too.\n",
            curves.areas_of(document["sections"]),
        ]
    for section in document["sections"]:
        title = f"{section['task']} with {section['model']}"
        lines += [f"## {title}\n", curves.conditions(section) + "\n", curves.curves_of(section)]
        lines += [f"The settings of {title}:\n", curves.settings_of(section)]
    lines += ["## Columns\n", curves.legend(document["sections"][0])]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["tiny-dream", "tiny-llada"], help="names or folders")
    parser.add_argument("--set", default="samplers", choices=SETS, help="the set of samplers and tasks to measure")
    parser.add_argument("--tasks", nargs="+", help="tasks of the set (default: all)")
    parser.add_argument("-n", type=int, help="problems of each task (default: as listed here)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--run", type=Path, required=True, help="folder that keeps the comparisons")
    parser.add_argument("--out", type=Path, default=FOLDER / "samplers.md", help="the page")
    parser.add_argument("--write", action="store_true", help="only write the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.run / "sections.json"
    if options.write and not kept.exists():
        parser.error(f"{options.run} has no sections.json: measure first, without --write")
    document: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"sections": []}
    tasks = SETS[options.set]
    if unknown := set(options.tasks or ()) - set(tasks):
        parser.error(f"the set {options.set} has no task {', '.join(sorted(unknown))}, but {', '.join(tasks)}")
    for model in options.models if not options.write else ():
        for task in options.tasks or tasks:
            setting = tasks[task]
            has_filter = Path(model).name in filter_names()  # `learned` needs a filter
            samplers = [sampler for sampler in setting.samplers if sampler != "learned" or has_filter]
            measured = curves.measure(
                model,
                task,
                [stopping(sampler) for sampler in samplers],
                options.run / f"{Path(model).name}-{task}",
                limit=options.n or setting.problems,
                problem_seed=options.seed,
                batch_size=options.batch_size,
                max_new_tokens=setting.max_new_tokens,
                points=setting.points,
                block_length=32,
            )
            sections = {(one["model"], one["task"]): one for one in [*document["sections"], *measured]}
            document = {"command": "python " + shlex.join(sys.argv), "torch": torch.__version__}
            document |= {"processor": processor(), "sections": list(sections.values())}
            kept.write_text(json.dumps(document, indent=1) + "\n")
    options.out.write_text(page(document))
    if options.out.resolve() == FOLDER / "samplers.md":
        shown = {**document, "sections": document["sections"][:1]}
        (FOLDER / "samplers.json").write_text(json.dumps(shown, indent=1) + "\n")


if __name__ == "__main__":
    main()
