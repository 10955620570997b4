"""Draws of every drafter with every exact acceptance against the true joint law of models small enough to enumerate.

    python benchmarks/exact_joint.py [--draws 200000] [--out benchmarks/exact_joint.md] [--keep] [--all] [--last]

Writes one row a pair: the G statistic in standard deviations above its mean and the total variation beside the sampling
noise, the worse of two prompts of unequal length that share every batch. Exact pairs stay below 4; a broken rule gives
tens to hundreds. The seeds are fixed. With `--keep` the pairs that the file has already, drawn as often, stay as they
are.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.samplers.joints import WORLDS, Reading, leading, measure, specs  # noqa: E402

LIMIT = 4.0  # standard deviations

HEAD = """# The exact joint, drawn

Written by `python benchmarks/exact_joint.py --draws {draws}` on {day} (torch {torch}, CPU). Every drafter, shape and
length controller once, and every exact acceptance on siblings, draws {draws} rows from small random models whose
sequences can all be enumerated, two prompts of unequal length in each batch. z: the G statistic against the true joint,
in standard deviations above its mean (Wilson and Hilferty); TV: total variation from the truth, and over the sampling
noise, which is what exact draws have on average. The worse of the two prompts is shown; above z = {limit:g} a pair is
wrong.

| drafter and acceptance | {worlds} |
|---|{rule}|
"""


def cell(readings: list[Reading]) -> str:
    """The worse prompt."""
    worst = max(readings, key=lambda reading: reading.z)
    return f"z {worst.z:+.2f}, TV {worst.distance:.4f} = {worst.distance / worst.noise:.2f} noise"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=200_000, help="rows of each pair (200000)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "exact_joint.md", help="file to write")
    parser.add_argument("--keep", action="store_true", help="measure only the pairs that the file has not")
    parser.add_argument("--all", action="store_true", help="every pair: about an hour and a half of one core")
    parser.add_argument("--last", action="store_true", help="from the last pair on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(WORLDS)[:2]
    kept = known(options.out, options.draws) if options.keep else {}
    head = HEAD.format(
        draws=options.draws,
        day=date.today().isoformat(),
        torch=torch.__version__.split("+")[0],
        limit=LIMIT,
        worlds=" | ".join(names),
        rule="---|" * (len(names) - 1) + "---",
    )
    lines, pairs = list[str](), specs() if options.all else leading()
    for spec in reversed(pairs) if options.last else pairs:
        if options.keep:  # another run may write the same table from the other end
            kept |= known(options.out, options.draws)
        if spec not in kept:
            found = [measure(spec, WORLDS[name], options.draws, seed=1) for name in names]
            kept[spec] = f"| `{spec}` | " + " | ".join(map(cell, found)) + " |"
            print(kept[spec], file=sys.stderr, flush=True)
        lines = [kept[pair] for pair in pairs if pair in kept]
        options.out.write_text(head + "\n".join(lines) + "\n")  # after each, so that a run can be taken up again
    wrong = [line for line in lines if max(map(float, re.findall(r"z ([-+][\d.]+|[-+]?inf)", line))) > LIMIT]
    print(f"{len(lines)} pairs, {len(wrong)} wrong; written to {options.out}", file=sys.stderr)
    return 1 if wrong else 0


def known(file: Path, draws: int) -> dict[str, str]:
    """The rows of a table made before with as many draws, by pair."""
    text = file.read_text() if file.exists() else ""
    if f"--draws {draws}`" not in text:
        return {}
    return {found[1]: found[0] for line in text.splitlines() if (found := re.match(r"\| `([^`]+)` \|.*", line))}


if __name__ == "__main__":
    sys.exit(main())
