"""Measures the claims of seven papers, each in its own setting, with the embedded models.

    python benchmarks/claims.py --run runs/claims [--only credit localleap ...] [--out benchmarks/claims.md]

Each setting is one `pardec.compare(..., sweep=True)`, kept with its report in a folder of `--run`; the same command
continues with what is not finished. What is measured replaces its section of the page, whose others stay;
`docs/benchmarks/claims.md` quotes it and judges. `text_claims.py` adds the sections of a model that writes text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import curves
import torch

FOLDER = Path(__file__).resolve().parent
HEAD = """# What seven papers promise, measured

`python benchmarks/claims.py --run runs/claims`

The tables of the page on claims, which says what is promised and what was found. [What the columns mean](#columns).
"""
COLUMNS = "Columns"


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
# Answers that can be filled in any order, and of which many are right: confidences are not all near 0 or 1.
GRADED: Mapping[str, Any] = {"limit": 60, "batch_size": 30, "max_new_tokens": 64, "block_length": 32}
FASTER = (
    "credit+eos", "localleap+eos", "localleap:radius=1+eos", "prophet+eos", "klass+eos", "hierarchy+eos", "factor+eos",
    "entropy_bound+eos",
)  # fmt: skip
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
    "grids": Setting("tiny-dream", "grids", FASTER, GRADED),
    "shuffle": Setting("tiny-dream", "shuffle", FASTER, {**GRADED, "limit": 24, "batch_size": 24}),
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


def sections(page: str) -> dict[str, str]:
    """The sections of the page, by name."""
    _, *parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def body(section: Mapping[str, Any], about: str = "") -> str:
    """One section as Markdown, after a line about its model."""
    lines = [f"{section['task']} with {section['model']}: {curves.conditions(section)}"]
    lines += [about.strip()] if about else []
    return "\n\n".join([*lines, curves.curves_of(section).strip(), curves.settings_of(section).strip()])


def write(out: Path, measured: Mapping[str, str]) -> None:
    """Writes sections to the page, in place of those of the same name."""
    found = sections(out.read_text(encoding="utf-8")) if out.is_file() else {}
    found.update(measured)
    columns = found.pop(COLUMNS, "")
    named = [name for name in SETTINGS if name in found] + [name for name in found if name not in SETTINGS]
    parts = [HEAD, *(f"## {name}\n\n{found[name]}\n" for name in named), f"## {COLUMNS}\n\n{columns}\n"]
    out.write_text("\n".join(parts), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("-n", type=int, help="problems of each setting (default: as listed in SETTINGS)")
    parser.add_argument("--run", type=Path, required=True, help="folder that keeps the comparisons")
    parser.add_argument("--out", type=Path, default=FOLDER / "claims.md", help="file to write the page to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        model, task, samplers, arguments = SETTINGS[name]
        limit = {"limit": options.n} if options.n else {}
        (section,) = curves.measure(model, task, samplers, options.run / name, **{**arguments, **limit})
        write(options.out, {name: body(section), COLUMNS: curves.legend(section).strip()})


if __name__ == "__main__":
    main()
