"""Tests exact drafters and acceptance rules against the enumerated joint distribution of small random models.

    python benchmarks/exact_joint.py [--draws 200000] [--out benchmarks/exact_joint.md] [--keep] [--all] [--last]

Writes a table with a row for each combination: the G statistic in standard deviations above its mean, and the total
variation next to the sampling noise, of the worse of two prompts. Exact combinations stay below 4; a broken rule gives
tens to hundreds. The seeds are fixed. With `--keep`, rows of the file with as many draws are not measured again.
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

from tests.samplers.joint_distributions import WORLDS, Reading, leading, measure, specs  # noqa: E402

LIMIT = 4.0  # standard deviations

HEAD = """# Sampled joint distributions against exact ones

This page checks that exact speculative decoding samples from the target's joint distribution. The models are small and
random, so that the probability of every sequence can be computed. Every drafter, tree shape and length controller is
tested once, and every exact acceptance rule with sibling drafts, on {draws} sampled sequences each. Two prompts of
unequal length share each batch; the table shows the worse of the two.

Written by `python benchmarks/exact_joint.py --draws {draws}{keep}` on {day} (torch {torch}, CPU). The largest z is
{largest:+.2f}; above {limit:g} a combination counts as wrong: {wrong} of {count}.

- z: the G statistic against the exact joint distribution, in standard deviations above its mean (Wilson-Hilferty).
- TV: total variation distance from the exact distribution, also as a multiple of the sampling noise, which is the
  average distance of exact samples.

| drafter and acceptance | {worlds} |
|---|{rule}|
"""


def cell(readings: list[Reading]) -> str:
    """The figures of the prompt with the larger deviation."""
    worst = max(readings, key=lambda reading: reading.z)
    return f"z {worst.z:+.2f}, TV {worst.distance:.4f} = {worst.distance / worst.noise:.2f} noise"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=200_000, help="sequences per combination (200000)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "exact_joint.md", help="file to write")
    parser.add_argument("--keep", action="store_true", help="measure only combinations that the file lacks")
    parser.add_argument("--all", action="store_true", help="every combination: about an hour and a half of one core")
    parser.add_argument("--last", action="store_true", help="start with the last combination")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(WORLDS)[:2]
    rows = read_rows(options.out, options.draws) if options.keep else {}
    lines, combinations, wrong = list[str](), specs() if options.all else leading(), 0
    for spec in reversed(combinations) if options.last else combinations:
        if options.keep:  # another run may write the same table from the other end
            rows |= read_rows(options.out, options.draws)
        if spec not in rows:
            readings = [measure(spec, WORLDS[name], options.draws, seed=1) for name in names]
            rows[spec] = f"| `{spec}` | " + " | ".join(map(cell, readings)) + " |"
            print(rows[spec], file=sys.stderr, flush=True)
        lines = [rows[spec] for spec in combinations if spec in rows]
        largest = [max(map(float, re.findall(r"z ([-+][\d.]+|[-+]?inf)", line))) for line in lines]
        wrong = sum(z > LIMIT for z in largest)
        head = HEAD.format(
            draws=options.draws,
            keep=" --keep" if options.keep else "",
            day=date.today().isoformat(),
            torch=torch.__version__.split("+")[0],
            limit=LIMIT,
            largest=max(largest),
            wrong=wrong,
            count=len(lines),
            worlds=" | ".join(names),
            rule="---|" * (len(names) - 1) + "---",
        )
        options.out.write_text(head + "\n".join(lines) + "\n")  # after each, so that a run can be continued
    print(f"{len(lines)} combinations, {wrong} wrong; written to {options.out}", file=sys.stderr)
    return 1 if wrong else 0


def read_rows(file: Path, draws: int) -> dict[str, str]:
    """The rows of an existing table with as many draws, by spec."""
    text = file.read_text() if file.exists() else ""
    if not re.search(rf"--draws {draws}\b", text):
        return {}
    return {match[1]: match[0] for line in text.splitlines() if (match := re.match(r"\| `([^`]+)` \|.*", line))}


if __name__ == "__main__":
    sys.exit(main())
