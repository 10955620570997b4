"""Compares `pardec tune` with an exhaustive sweep of the same space: the chosen sampler, and the share of the cost.

    python benchmarks/tuning.py --run runs/tuning [--model tiny-dream] [--task chains-64] [-n 200] [--trials 200]
        [--out benchmarks/tuning.json]

The sweep decodes every candidate and the baseline on the same held-out problems (kept in `--run`; the same command
continues it); the best is the cheapest candidate that loses no more than `--max-drop` points. Then `tune`'s own
search and confirmation run many times on what was measured, each time with the problems in another order and a share of
the sweep's decodes as budget. Costs are forwards, those of the baseline and of the confirmation included.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import pardec
from pardec.comparison.tuning.bench import Baseline, Bench, ProblemSet
from pardec.comparison.tuning.confirming import Confirmation
from pardec.comparison.tuning.fit import Fit
from pardec.comparison.tuning.halving import Outcome, search
from pardec.comparison.tuning.prepared import BASELINE
from pardec.comparison.tuning.space import Candidate
from pardec.environment import processor

SAMPLERS = (
    "threshold+eos", "factor+eos", "entropy_bound+eos", "klass+eos", "localleap:radius=4+threshold+eos",
    "credit:free=false+threshold+eos", "wino+eos", "hierarchy+eos", "confident+eos",
)  # fmt: skip
SHARES = (0.1, 0.2)  # budgets, as shares of the sweep's decodes
NEAR = 1.05  # a setting that costs at most this many times the best one counts as found


@dataclass(frozen=True)
class Decoded(Bench):
    """A `Bench` that looks results up in the sweep."""

    table: dict[Candidate, dict[str, Outcome]]
    spent: list[float]

    def decode(
        self, stage: str, candidates: Sequence[Candidate], problems: ProblemSet
    ) -> dict[Candidate, list[Outcome | None]]:
        ids = [problem.id for _, problem in problems.owners]
        found: dict[Candidate, list[Outcome | None]]
        found = {one: [self.table[one][name] for name in ids] for one in candidates}
        self.spent.append(sum(outcome.nfe for outcomes in found.values() for outcome in outcomes if outcome))
        return found


def sweep(model: Any, task: Any, fit: Fit, options: argparse.Namespace) -> tuple[list[Candidate], Candidate, Any]:
    """The candidates, the baseline, and the outcomes of all by problem."""
    space = fit.space(BASELINE, ("none",), (), mix=True)
    candidates = space.of(SAMPLERS)
    baseline = fit.exact(space.exact, Candidate(BASELINE))
    bench = Bench(model, {"batch_size": options.batch_size, "resume": True, **fit.arguments}, options.run)
    problems = ProblemSet(tuple((task, problem) for problem in task.problems("heldout", options.n, options.seed)))
    outcomes = bench.decode("sweep", [baseline, *candidates], problems)
    ids = [problem.id for _, problem in problems.owners]
    table = {one: dict(zip(ids, rows, strict=True)) for one, rows in outcomes.items()}
    return candidates, baseline, (problems, table)


def mean(rows: Any, figure: str) -> float:
    return sum(getattr(outcome, figure) for outcome in rows.values()) / len(rows)


def trial(
    number: int,
    budget: int,
    candidates: Sequence[Candidate],
    baseline: Candidate,
    problems: ProblemSet,
    table: Any,
    max_drop: float,
) -> tuple[Candidate, float]:
    """The choice of one search and its confirmation, and the forwards that both took."""
    owners = list(problems.owners)
    random.Random(number).shuffle(owners)
    half = len(owners) // 2
    bench = Decoded("measured", {}, None, table, [])
    tuning, fresh = replace(problems, owners=tuple(owners[:half])), replace(problems, owners=tuple(owners[half:]))
    exact = Baseline(bench, baseline, tuning)

    def on_tuning(group: Sequence[Candidate], start: int, stop: int) -> dict[Candidate, list[Outcome | None]]:
        if not start:
            return exact.decode_together("rung", group[1:], start, stop)
        rows = bench.measure("rung", group[1:], tuning, start, stop)
        return {baseline: exact.decode_if_needed("baseline", rows, start, stop), **rows}

    found = search(
        candidates, baseline, on_tuning, budget=budget, problems=half, max_drop=max_drop, cost="nfe"
    )  # fmt: skip
    confirmation = Confirmation(Baseline(bench, baseline, fresh), candidates[0], "nfe", lambda text: None)
    judgement = confirmation.judge(found.trials[: found.finalists], max_drop)
    return judgement.winner.candidate, sum(bench.spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-dream")
    parser.add_argument("--task", default="chains-64")
    parser.add_argument("-n", type=int, default=400, help="problems of the sweep")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--max-drop", type=float, default=2.0)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--run", type=Path, required=True, help="folder that keeps the sweep")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pardec.load(options.model, device="cpu", dtype="float32")
    fit = Fit.of(model, {}, {"max_new_tokens": options.max_new_tokens})
    candidates, baseline, (problems, table) = sweep(model, pardec.task(options.task), fit, options)
    exact = mean(table[baseline], "score")
    kept = [one for one in candidates if exact - mean(table[one], "score") <= options.max_drop / 100]
    best = min((mean(table[one], "nfe"), str(one)) for one in kept)
    whole = sum(mean(table[one], "nfe") for one in candidates) * options.n
    rows = []
    for share in SHARES:
        budget = int(share * len(candidates) * options.n)
        trials = [
            trial(number, budget, candidates, baseline, problems, table, options.max_drop)
            for number in range(options.trials)
        ]
        ratios = [mean(table[one], "nfe") / best[0] for one, _ in trials]
        drops = [100 * (exact - mean(table[one], "score")) for one, _ in trials]
        rows.append({
            "share of the decodes": share,
            "budget": budget,
            "share of the forwards": round(median(spent for _, spent in trials) / whole, 3),
            "found": round(sum(ratio <= NEAR for ratio in ratios) / len(ratios), 3),
            "median ratio": round(median(ratios), 3),
            "worst ratio": round(max(ratios), 3),
            "lose more than the bound": round(sum(drop > options.max_drop for drop in drops) / len(drops), 3),
        })  # fmt: skip
        print(rows[-1])
    document = {"command": "python " + shlex.join(sys.argv), "torch": torch.__version__, "processor": processor()}
    document |= {"model": options.model, "task": options.task, "problems": options.n, "candidates": len(candidates)}
    document |= {"max_drop": options.max_drop, "sequential": exact, "best": {"sampler": best[1], "nfe": best[0]}}
    document |= {"trials": options.trials, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
