"""Measures the claims of seven papers, each in its own setting, with the embedded models.

    python benchmarks/claims.py --run runs/claims [--only credit localleap ...] [--out benchmarks/claims.md]

Each setting is one `pardec.compare(..., sweep=True)`, kept with its report in a folder of `--run`; the same command
continues with what is not finished. What is measured replaces its section of `sections.json` in `--run`, from which the
whole page is written; `docs/benchmarks/claims.md` quotes it and judges. `--write` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import curves
import torch

from pardec.environment import processor

FOLDER = Path(__file__).resolve().parent


class Setting(NamedTuple):
    """A comparison: a model, a task, samplers that are swept, and arguments of `pardec.compare`."""

    model: str
    task: str
    samplers: Sequence[str]
    arguments: Mapping[str, Any]


CHAINS: Mapping[str, Any] = {"limit": 60, "batch_size": 60, "max_new_tokens": 192, "block_length": 32}
# With the prompt, near the 512 positions of the embedded models.
LONG: Mapping[str, Any] = {"limit": 16, "batch_size": 16, "max_new_tokens": 384, "block_length": 32}
CODES: Mapping[str, Any] = {"limit": 100, "batch_size": 50}
DRAFTER = "model:name=tiny-llamagen-draft,k=5"
SETTINGS = {
    "credit": Setting("tiny-dream", "chains", ("credit+eos", "credit:free=true+eos"), CHAINS),
    "localleap": Setting("tiny-dream", "chains", ("localleap+eos", "localleap:relaxed=0.6+eos"), CHAINS),
    "prophet-fixed": Setting(
        "tiny-dream", "chains", ("fixed:steps=192+prophet+eos", "prophet+eos"), {**CHAINS, "limit": 30}
    ),
    "prophet-answer": Setting(
        "tiny-dream", "arithmetic", ("fixed:steps=64+prophet:start=14,length=5+eos",), {**CHAINS, "max_new_tokens": 64}
    ),
    "dkv-cache": Setting(
        "tiny-dream",
        "chains",
        ("sequential+eos@dkv", "eos@dkv", "eos@dkv:prompt=keep", "eos@dual", "eos@prefix"),
        LONG,
    ),
    "sjd": Setting("tiny-llamagen", "captions", ("sequential", "sjd", "sjd:refresh=gumbel"), CODES),
    "sjd-greedy": Setting("tiny-llamagen", "captions", ("sequential", "sjd", "jacobi"), {**CODES, "temperature": 0.0}),
    "lantern": Setting(
        "tiny-llamagen", "captions", ("sequential", f"{DRAFTER}+lantern:k=32", f"{DRAFTER}+lantern:k=8"), CODES
    ),
    "lantern-greedy": Setting(
        "tiny-llamagen", "captions", ("sequential", f"{DRAFTER}+lantern:k=32"), {**CODES, "temperature": 0.0}
    ),
    "lantern-published": Setting("tiny-llamagen", "captions", (f"{DRAFTER}+lantern:k=8,mode=reference",), CODES),
    "cspd": Setting(
        "tiny-mar",
        "classes",
        ("cspd:draft=tiny-mar-draft,k=4", "cspd:draft=tiny-mar-draft,k=8"),
        {"limit": 108, "batch_size": 18},
    ),
}


def page(document: dict[str, Any]) -> str:
    """The sections as Markdown."""
    lines = [
        "# What seven papers promise, measured\n",
        f"`{document['command']}`\n",
        "The tables of the page on claims, which says what is promised and what was found. "
        "[What the columns mean](#columns).\n",
    ]
    for name, section in document["sections"].items():
        lines += [f"## {name}\n", f"{section['task']} with {section['model']}: {curves.conditions(section)}\n"]
        lines += [curves.curves_of(section), curves.settings_of(section)]
    lines += ["## Columns\n", curves.legend(next(iter(document["sections"].values())))]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("-n", type=int, help="problems of each setting (default: as listed in SETTINGS)")
    parser.add_argument("--run", type=Path, required=True, help="folder that keeps the comparisons")
    parser.add_argument("--out", type=Path, default=FOLDER / "claims.md", help="the page")
    parser.add_argument("--write", action="store_true", help="only write the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.run / "sections.json"
    if options.write and not kept.exists():
        parser.error(f"{options.run} has no sections.json: measure first, without --write")
    document: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"sections": {}}
    for name in options.only if not options.write else ():
        model, task, samplers, arguments = SETTINGS[name]
        limit = {"limit": options.n} if options.n else {}
        (section,) = curves.measure(model, task, samplers, options.run / name, **{**arguments, **limit})
        sections = {**document["sections"], name: section}
        document = {"command": "python " + shlex.join(sys.argv), "torch": torch.__version__}
        document |= {"processor": processor(), "sections": sections}
        kept.write_text(json.dumps(document, indent=1) + "\n")
    options.out.write_text(page(document))


if __name__ == "__main__":
    main()
