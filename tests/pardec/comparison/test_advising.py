"""The advice of `tune`, on candidates with the quality and cost measured for tiny-dream on arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import pardec
from pardec.comparison.tuning import BUDGET
from pardec.comparison.tuning.bench import Baseline, ProblemSet
from pardec.comparison.tuning.confirming import Confirmation, Judgement, problem_count
from pardec.comparison.tuning.halving import ASSUMED, Outcome, search
from pardec.comparison.tuning.space import Candidate
from pardec.tasks import Problem, Task

BASE, DEFAULT = Candidate("sequential+eos"), Candidate("threshold+eos")

# Accuracy and forwards on held-out problems of arithmetic: 300 where they were compared, else those of a search.
MEASURED: Mapping[str, tuple[float, float]] = {
    "threshold": (0.990, 1.54),
    "threshold:tau=0.95": (0.9967, 1.65),
    "threshold:tau=0.97": (0.9967, 1.73),
    "threshold:tau=0.98": (1.0, 1.78),
    "threshold:tau=0.99": (1.0, 1.87),
    "threshold:tau=0.8": (0.9767, 1.48),
    "threshold:tau=0.7": (0.95, 1.4),
    "threshold:tau=0.6": (0.9, 1.33),
    "threshold:tau=0.5": (0.85, 1.25),
    "smoothing": (0.98, 1.54),
    "credit": (0.978, 1.55),
    "credit+localleap": (0.94, 1.38),
    "factor": (0.99, 1.69),
    "factor:f=0.5": (0.9933, 1.79),
    "entropy_threshold": (0.982, 1.55),
    "entropy_bound": (0.97, 1.83),
    "entropy_bound:gamma=0.01": (0.9967, 2.17),
    "confident": (0.99, 1.65),
    "learned": (0.955, 1.46),
    "hierarchy": (0.97, 1.62),
    "localleap": (0.95, 1.42),
    "wino": (0.96, 1.5),
    "edit": (0.98, 2.71),
    "klass": (0.9967, 4.42),
    "carry:steps=16": (1.0, 8.05),
    "fixed:steps=16": (0.98, 16.0),
    "origin:steps=16": (0.6, 16.0),
    "timesteps:steps=16": (0.97, 16.0),
    "fixed:steps=16+prophet": (0.989, 8.0),
    "prophet": (0.74, 1.1),
}


@dataclass
class Simulated:
    """A bench whose candidates are right with a known probability; it counts their decodes."""

    known: Mapping[Candidate, tuple[float, float]]
    seed: int = 0
    decodes: dict[Candidate, int] = field(default_factory=dict)

    def measure(
        self, stage: str, candidates: Sequence[Candidate], chosen: ProblemSet, start: int, stop: int
    ) -> dict[Candidate, list[Outcome | None]]:
        return self.decode(stage, candidates, ProblemSet(chosen.owners[start:stop], name=chosen.name))

    def decode(
        self, stage: str, candidates: Sequence[Candidate], some: ProblemSet
    ) -> dict[Candidate, list[Outcome | None]]:
        for one in candidates:
            self.decodes[one] = self.decodes.get(one, 0) + len(some.owners)
        return {one: [self._one(one, f"{some.name}/{problem.id}") for _, problem in some.owners] for one in candidates}

    def _one(self, one: Candidate, problem: str) -> Outcome:
        quality, forwards = self.known[one]
        right = random.Random(f"{self.seed}/{one.spec}/{problem}").random() < quality
        return Outcome(float(right), forwards, 96 * forwards, forwards / 20)


class Numbered(Task):
    name = summary = "numbered"

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        return []

    def score(self, problem: Problem, text: str) -> float:
        return 0.0


def _chosen(count: int, name: str) -> ProblemSet:
    return ProblemSet(tuple((Numbered(), Problem(str(at), "", "")) for at in range(count)), name=name)


def _advised(
    known: Mapping[Candidate, tuple[float, float]], seed: int, budget: int = BUDGET
) -> tuple[Judgement, Simulated]:
    """Runs the search and the confirmation like `tune`."""
    bench: Any = Simulated(known, seed)
    tuning = _chosen(budget // 2, "tuning")
    searching = Baseline(bench, BASE, tuning)

    def measure(some: Sequence[Candidate], start: int, stop: int) -> dict[Candidate, list[Outcome | None]]:
        if not start:
            return searching.decode_together("", some[1:], start, stop)
        rows = bench.measure("", some[1:], tuning, start, stop)
        return {BASE: searching.decode_if_needed("", rows, start, stop), **rows}

    candidates = [one for one in known if one != BASE]
    result = search(candidates, BASE, measure, budget=budget, problems=budget // 2, max_drop=1.0, cost="nfe")
    bench.decodes.clear()
    stand = Confirmation(Baseline(bench, BASE, _chosen(problem_count(1.0), "fresh")), DEFAULT, "nfe", lambda text: None)
    return stand.judge(result.trials[: result.finalists], 1.0), bench


ARITHMETIC = {Candidate(f"{spec}+eos"): figures for spec, figures in MEASURED.items()} | {BASE: (1.0, 32.0)}


def test_what_a_person_sees_in_the_table_is_advised() -> None:
    """Over sixteen seeds, the advice is almost never the baseline and has the forwards of the good thresholds."""
    made = [_advised(ARITHMETIC, seed)[0] for seed in range(16)]
    advised = [judged.winner.candidate for judged in made]
    few = [one for one in advised if ARITHMETIC[one][1] < 4]
    assert advised.count(BASE) <= 1
    assert len(few) >= 12
    assert all(ARITHMETIC[one][0] >= 0.99 for one in advised)
    sure = [ARITHMETIC[judged.winner.candidate][0] for judged in made if judged.verdict == "holds"]
    assert len(sure) >= 8


def test_the_baseline_is_decoded_where_a_candidate_is_wrong_and_no_drop_is_smaller_for_it() -> None:
    judged, bench = _advised(ARITHMETIC, 3)
    assert bench.decodes[BASE] < problem_count(1.0) / 3
    assert sum(outcome is ASSUMED for outcome in judged.baseline.outcomes) == problem_count(1.0) - bench.decodes[BASE]
    assert not math.isnan(judged.baseline.mean("nfe"))
    weak = {**ARITHMETIC, BASE: (0.8, 32.0)}
    whole = Simulated(weak, 3)
    every = whole.decode("", [BASE, *(one.candidate for one in judged.trials)], _chosen(problem_count(1.0), "fresh"))
    for trial in _advised(weak, 3)[0].trials:
        if trial.candidate in every:
            pairs = zip(every[BASE], every[trial.candidate], strict=True)
            true = 100 * sum(base.score - own.score for base, own in pairs if base and own) / problem_count(1.0)
            assert trial.points >= true - 1e-9


def test_what_the_baseline_gets_wrong_speaks_for_a_candidate_before_nothing_is_advised() -> None:
    known = {DEFAULT: (0.75, 2.0), Candidate("factor+eos"): (0.75, 3.0), BASE: (0.6, 32.0)}
    judged, bench = _advised(known, 0)
    assert judged.winner.candidate == DEFAULT
    assert judged.winner.points < -10
    assert bench.decodes[BASE] == problem_count(1.0)
    assert all(outcome is not ASSUMED for outcome in judged.baseline.outcomes)


def test_a_small_search_on_arithmetic_says_how_sure_it_is_and_what_it_costs_in_time() -> None:
    some = ["threshold:tau=0.98+eos", "threshold:tau=0.0+eos"]
    advice = pardec.tune(
        "tiny-dream", "arithmetic", samplers=some, device="cpu", budget=12, confirm=6, max_new_tokens=64
    )
    winner = advice.evidence[0]
    assert (advice.spec, advice.verdict) == (some[0], "within")
    assert winner["nfe"] < 4
    assert winner["drop"] <= 1.0 < winner["drop_high"]
    assert f"with 95% confidence it loses at most {winner['drop_high']:.1f}" in advice.text
    assert "; seconds: " in advice.text


@pytest.mark.slow
def test_the_command_of_the_readme_advises_what_the_table_shows() -> None:
    advice = pardec.tune("tiny-dream", "arithmetic", max_drop=1.0, device="cpu")
    assert advice.verdict in ("holds", "within")
    assert advice.evidence[0]["nfe"] < 4
    assert advice.evidence[0]["accuracy"] >= 0.99


def test_too_few_problems_advise_nothing_and_say_how_many_are_needed() -> None:
    some = ["threshold:tau=0.98+eos", "threshold:tau=0.95+eos"]
    arguments: dict[str, Any] = {"samplers": some, "device": "cpu", "budget": 12, "max_new_tokens": 24}
    advice = pardec.tune("tiny-dream", "arithmetic", confirm=1, **arguments)
    assert (advice.spec, advice.verdict) == ("threshold+eos", "unsure")
    assert "1 fresh problem is too few for advice" in advice.text
    assert "may still lose 82 points. At least 20 are needed" in advice.text
    problems = pardec.task("arithmetic").problems(n=20)
    lines = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    advice = pardec.tune("tiny-dream", prompts=lines, **arguments)  # ten of them are fresh
    assert advice.verdict == "unsure"
    assert "10 fresh problems are too few" in advice.text
