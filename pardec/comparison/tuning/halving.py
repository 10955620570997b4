"""Successive halving: each rung measures the remaining candidates on more problems and drops some of them.

A candidate is dropped if it failed, if it is significantly worse than the bound allows, or if one of similar cost
promises more: its savings over the baseline, times how compatible its scores are with the bound. It competes only with
its neighbours in cost, since cheaper candidates are often worse, which the few problems of early rungs do not show. The
baseline is measured on the same problems, so that quality is compared problem by problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pardec.models.errors import SpecError

from .paired import Drop, drop, probability
from .space import Candidate

REDUCTION = 3  # a rung keeps one candidate in three
FINALISTS = 4  # in the last rung
MIN_PROBLEMS = 8  # fewest problems of the first rung when tune chooses the number of candidates
TIE = 0.01  # costs that differ by less than this share count as equal
_LEAST = 1e-9  # lower bound of costs, to take logarithms


@dataclass(frozen=True, slots=True)
class Outcome:
    """One candidate on one problem."""

    score: float
    nfe: float
    tokens_fed: float
    seconds: float


# The baseline's outcome where it is not decoded: candidates are right there, and this never underestimates their drop.
ASSUMED = Outcome(1.0, math.nan, math.nan, math.nan)

# Decodes the tuning problems [start, stop) with candidates: one outcome per problem, None for a failed decode.
Measure = Callable[[Sequence[Candidate], int, int], Mapping[Candidate, Sequence[Outcome | None]]]


@dataclass
class Trial:
    """The measurements of a candidate."""

    candidate: Candidate
    cost: str  # the field of an outcome to minimize
    outcomes: list[Outcome] = field(default_factory=list)
    baseline: list[Outcome] = field(default_factory=list)  # on the same problems
    order: int = 0  # index among the candidates; earlier ones are simpler
    reason: str = ""  # why it was dropped
    rung: int = 0  # the last that measured it

    def mean(self, figure: str) -> float:
        """The mean over the decoded problems; inf if there are none."""
        return _mean(self.outcomes, figure)

    def add(self, baseline: Sequence[Outcome | None], outcomes: Sequence[Outcome | None]) -> None:
        """Adds outcomes on more problems; problems on which the baseline failed are ignored."""
        if None in outcomes:
            self.reason = "failed"
        pairs = [
            (baseline_outcome, outcomes)
            for baseline_outcome, outcomes in zip(baseline, outcomes, strict=True)
            if baseline_outcome and outcomes
        ]
        self.baseline += [baseline_outcome for baseline_outcome, _ in pairs]
        self.outcomes += [outcomes for _, outcomes in pairs]

    @property
    def step(self) -> int:
        """The cost on a logarithmic scale with steps of `TIE`; candidates in the same step cost the same."""
        cost = self.mean(self.cost)
        return round(math.log(max(cost, _LEAST)) / math.log1p(TIE))

    @property
    def points(self) -> float:
        """Quality lost so far, in points."""
        lost = [base.score - own.score for base, own in zip(self.baseline, self.outcomes, strict=True)]
        return round(100 * math.fsum(lost) / len(lost), 9)

    def promise(self, max_drop: float) -> float:
        """The expected share of the baseline's cost that it saves, where savings count only within the bound."""
        base, own = ([outcome.score for outcome in outcomes] for outcomes in (self.baseline, self.outcomes))
        return probability(base, own, max_drop) * (1 - self.mean(self.cost) / _mean(self.baseline, self.cost))

    def drop(self, level: float = 0.95) -> Drop:
        return drop([o.score for o in self.baseline], [o.score for o in self.outcomes], level)


def _mean(outcomes: Sequence[Outcome], figure: str) -> float:
    values = [value for outcome in outcomes if not math.isnan(value := getattr(outcome, figure))]
    return math.fsum(values) / len(values) if values else math.inf


@dataclass(frozen=True)
class SearchResult:
    """The result of successive halving."""

    trials: list[Trial]  # every candidate: the finalists first, best first
    finalists: int
    problems: int  # tuning problems used
    spent: int  # decodes, including the baseline's
    rungs: int


def rungs(candidates: int) -> int:
    """The number of rungs that reduce the candidates to the finalists, plus one for the finalists."""
    count = 1
    while candidates > FINALISTS:
        candidates, count = _survivors(candidates), count + 1
    return count


def _survivors(candidates: int) -> int:
    return max(FINALISTS, math.ceil(candidates / REDUCTION))


def max_candidates(budget: int) -> int:
    """The most candidates for which the first rung has `MIN_PROBLEMS` problems."""
    count = 1
    while budget // rungs(count + 1) // (count + 2) >= MIN_PROBLEMS:
        count += 1
    return count


def search(
    candidates: Sequence[Candidate],
    baseline: Candidate,
    measure: Measure,
    *,
    budget: int,
    problems: int,
    max_drop: float,
    cost: str,
    report: Callable[[str], object] = lambda text: None,
) -> SearchResult:
    """Finds the cheapest candidates that keep the quality of the baseline.

    Args:
        budget: most decodes in all, each of one candidate on one problem, including the baseline's.
        problems: the number of tuning problems.
        max_drop: points of quality that may be lost.

    Raises SpecError for a budget that is too small for a single problem a rung.
    """
    levels = rungs(len(candidates))
    if budget // levels // (len(candidates) + 1) < 1:
        raise SpecError(
            f"a budget of {budget} decodes is too small for {len(candidates)} candidates in {levels} rungs",
            hint=f"use at least {levels * (len(candidates) + 1)}",
        )
    trials = [Trial(candidate, cost, order=order) for order, candidate in enumerate(candidates)]
    remaining, used, spent = trials, 0, 0
    for rung in range(levels):
        decodes = len(remaining) + 1
        count = min((budget - spent) // (levels - rung) // decodes, problems - used)
        if count > 0:
            report(f"rung {rung + 1} of {levels}: {len(remaining)} candidates on {count} problems")
            measured = measure([baseline, *(trial.candidate for trial in remaining)], used, used + count)
            for trial in remaining:
                trial.add(measured[baseline], measured[trial.candidate])
                trial.rung = rung + 1
            used, spent = used + count, spent + decodes * count
        remaining = _select(remaining, _survivors(len(remaining)), max_drop)
        if not remaining or used == problems:
            break
    remaining = _select(remaining, FINALISTS, max_drop)
    dropped = [trial for trial in trials if trial.reason]
    ranked = sorted(
        (trial for trial in dropped if trial.outcomes), key=lambda trial: (-trial.rung, *_best(trial, max_drop))
    )
    return SearchResult(
        [*remaining, *ranked, *(trial for trial in dropped if not trial.outcomes)], len(remaining), used, spent, levels
    )


def _select(trials: Sequence[Trial], keep: int, max_drop: float) -> list[Trial]:
    """The best of each of `keep` groups of neighbours in cost, best first; sets `reason` of the others."""
    for trial in trials:
        if not trial.reason and not trial.outcomes:
            trial.reason = "failed"
        if not trial.reason and trial.drop().low > max_drop:
            trial.reason = "loses too much"
    by_cost = sorted((trial for trial in trials if not trial.reason), key=cheapest)
    best, count = [], min(keep, len(by_cost))
    for index in range(count):
        group = by_cost[index * len(by_cost) // count : (index + 1) * len(by_cost) // count]
        best.append(min(group, key=lambda trial: _best(trial, max_drop)))
        for trial in group:
            trial.reason = "" if trial is best[-1] else "promises less"
    return sorted(best, key=lambda trial: _best(trial, max_drop))


def _best(trial: Trial, max_drop: float) -> tuple[float, int, tuple[int, int, int], int]:
    """Sort key: promise in steps of one percent, then cost and simplicity."""
    return -round(trial.promise(max_drop), 2), *cheapest(trial)


def cheapest(trial: Trial) -> tuple[int, tuple[int, int, int], int]:
    """Sort key: cost, then simplicity, then the order of the candidates, in which the default is first."""
    return trial.step, trial.candidate.size, trial.order
