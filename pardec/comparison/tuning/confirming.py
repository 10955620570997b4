"""The confirmation: tests the best candidates of a search on fresh problems until one holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from pardec.models.errors import PardecError

from .bench import Baseline
from .halving import Outcome, Trial, cheapest
from .space import Candidate

MAX_CONFIRMED = 3  # most candidates tested
CONFIDENCE = 0.95  # probability that a candidate that holds loses no more than the bound, over all tests
MIN_PROBLEMS, MAX_PROBLEMS = 100, 500  # bounds of the default number of problems
LEAST_PROBLEMS = 20  # fewer say too little to advise: without any loss, 18 points may still be lost
LEAST_REQUESTED = 5  # the same where `confirm` sets the number
BASELINE_PROBLEMS = 32  # problems that the baseline is always decoded on, to measure its cost

# Decodes candidates on every confirmation problem; returns trials that include the baseline's outcomes.
Confirm = Callable[[int, Sequence[Candidate]], Sequence[Trial]]


@dataclass(frozen=True)
class Verdict:
    """The outcome of testing the finalists."""

    winner: Trial | None  # None: no candidate holds or is within the bound
    verdict: str  # "holds", "within" or "none"
    trials: list[Trial]  # in the order of the tests


def level() -> float:
    """Level of the two-sided interval of one test, whose one-sided error is (1 - `CONFIDENCE`) / `MAX_CONFIRMED`."""
    return 1 - 2 * (1 - CONFIDENCE) / MAX_CONFIRMED


def problem_count(max_drop: float) -> int:
    """The number of problems on which a candidate without losses holds, from `MIN_PROBLEMS` to `MAX_PROBLEMS`."""
    z, share = NormalDist().inv_cdf((1 + level()) / 2), max_drop / 100
    return MAX_PROBLEMS if share <= 0 else min(max(math.ceil(z * z * (1 - share) / share), MIN_PROBLEMS), MAX_PROBLEMS)


def least_problems(requested: int | None) -> int:
    """The fewest problems on which a candidate can be within the bound, given the requested number."""
    return LEAST_PROBLEMS if requested is None else LEAST_REQUESTED


def confirm(finalists: Sequence[Trial], measure: Confirm, max_drop: float) -> Verdict:
    """Tests one finalist after the other until one holds: the upper end of its drop is within the bound.

    The tests are Bonferroni-corrected, so the first finalist that holds can be returned. If none holds, the winner is
    the one with the smallest upper end among those whose drop itself is within the bound.
    """
    trials: list[Trial] = []
    for number, finalist in enumerate(finalists[:MAX_CONFIRMED]):
        (trial,) = measure(number, [finalist.candidate])
        trials.append(trial)
        if not trial.reason and trial.drop(level()).high <= max_drop:
            return Verdict(trial, "holds", trials)
    within = [trial for trial in trials if not trial.reason and trial.points <= max_drop]
    if not within:
        return Verdict(None, "none", trials)
    return Verdict(min(within, key=lambda trial: (trial.drop(level()).high, *cheapest(trial))), "within", trials)


@dataclass(frozen=True)
class Judgement:
    """The winner of a confirmation, with the baseline and the default to compare with."""

    baseline: Trial
    default: Trial  # the baseline itself where they are one sampler
    winner: Trial
    verdict: str  # "holds", "within", "default", "baseline", or "unsure" on too few problems
    trials: list[Trial]


@dataclass
class Confirmation:
    """Tests candidates on the problems of `baseline`."""

    baseline: Baseline  # gives the tokens of sequential decoding, in as few forwards as the default's parts allow
    default: Candidate
    cost: str
    report: Callable[[str], object]
    least: int = LEAST_REQUESTED  # problems, fewer than which nothing is within a bound
    rows: dict[Candidate, list[Outcome | None]] = field(default_factory=dict)

    def judge(self, finalists: Sequence[Trial], max_drop: float) -> Judgement:
        """Tests the finalists; the winner is one of them, else the default if within the bound, else the baseline.

        The baseline is first decoded only where a candidate is wrong. If no candidate wins, it is decoded on all
        problems: its own errors reduce the candidates' drops. Raises PardecError if it cannot be decoded.
        """
        self._decode(1, [self.default, *(finalist.candidate for finalist in finalists[:1])])
        if not self.baseline.known:  # there is no finalist, and the default is the baseline
            self.baseline.decode("confirmation-baseline", range(self._count))
        if not any(self.baseline.known.values()):
            name = self.baseline.candidate
            raise PardecError(f"the baseline {name} could not be decoded", hint=f"try pardec generate -s {name}")

        def measure(look: int, candidates: Sequence[Candidate]) -> list[Trial]:
            self._decode(look + 1, candidates)
            return [self._trial(candidate) for candidate in candidates]

        for everywhere in (False, True):
            if everywhere:
                self.baseline.decode("confirmation-baseline", range(self._count))
            verdict = confirm(finalists, measure, max_drop)
            baseline = self._trial(self.baseline.candidate)
            default = baseline if self.default == baseline.candidate else self._trial(self.default)
            if verdict.winner is not None and verdict.verdict == "within" and self._count < self.least:
                return Judgement(baseline, default, baseline if default.reason else default, "unsure", verdict.trials)
            if verdict.winner is not None:
                return Judgement(baseline, default, verdict.winner, verdict.verdict, verdict.trials)
            if not default.reason and default.points <= max_drop and cheapest(default) < cheapest(baseline):
                return Judgement(baseline, default, default, "default", verdict.trials)
        return Judgement(baseline, default, baseline, "baseline", verdict.trials)

    @property
    def _count(self) -> int:
        return len(self.baseline.problem_set.owners)

    def _decode(self, look: int, candidates: Sequence[Candidate]) -> None:
        """Decodes candidates on every problem, and the baseline where they are wrong."""
        decoded = (*self.rows, self.baseline.candidate)
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in decoded]
        if not new:
            return
        stage, count = f"confirmation-{look}", min(BASELINE_PROBLEMS, self._count) if look == 1 else 0
        self.report(f"confirmation {look}: {', '.join(map(str, new))} on {self._count} fresh problems")
        rows: dict[Candidate, list[Outcome | None]] = {candidate: [] for candidate in new}
        if count:
            outcomes = self.baseline.decode_together(stage, new, 0, count)
            rows = {candidate: outcomes[candidate] for candidate in new}
        if count < self._count:
            bench, problem_set = self.baseline.bench, self.baseline.problem_set
            rest = bench.measure(f"{stage}-rest" if count else stage, new, problem_set, count, self._count)
            rows = {candidate: rows[candidate] + rest[candidate] for candidate in new}
        self.baseline.decode_if_needed(f"{stage}-baseline", rows, 0, self._count)
        self.rows |= rows

    def _trial(self, candidate: Candidate) -> Trial:
        baseline, trial = self.baseline.outcomes(0, self._count), Trial(candidate, self.cost)
        trial.add(baseline, self.rows.get(candidate, baseline))
        return trial
