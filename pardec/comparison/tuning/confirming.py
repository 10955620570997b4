"""The confirmation: the best of a search on problems that the search never saw, until one holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from pardec.models.errors import PardecError

from .bench import Baseline
from .halving import Outcome, Trial, cheapest
from .space import Candidate

LOOKS = 3  # candidates confirmed at most
SURE = 0.95  # that a candidate which holds loses no more than the bound, over all looks together
FEWEST, MOST = 100, 500  # problems of a confirmation, where tune itself chooses
WHOLE = 32  # of them, those that the baseline is decoded on whatever comes of it: for its cost, and its times beside

# Outcomes of candidates on every confirmation problem, as trials with the baseline's beside them.
Confirm = Callable[[int, Sequence[Candidate]], Sequence[Trial]]


@dataclass(frozen=True)
class Verdict:
    """What the confirmation came to."""

    winner: Trial | None  # None: nothing holds, nor may
    how: str  # "holds", "within" or "none"
    finalists_tried: list[Trial]  # in the order of the looks


def level() -> float:
    """Of the two-sided interval of one look: an end of it errs with the share of 1 - `SURE` that each look has."""
    return 1 - 2 * (1 - SURE) / LOOKS


def enough(max_drop: float) -> int:
    """Problems with which a candidate that loses nothing holds, within `FEWEST` and `MOST`."""
    z, share = NormalDist().inv_cdf((1 + level()) / 2), max_drop / 100
    return MOST if share <= 0 else min(max(math.ceil(z * z * (1 - share) / share), FEWEST), MOST)


def confirm(finalists: Sequence[Trial], measure: Confirm, max_drop: float) -> Verdict:
    """Looks at one after the other until one holds: the upper end of its drop is within the bound.

    Each look has its share of the error (Bonferroni), so that the first that holds can be taken. Where none does, the
    one with the least upper end is taken of those whose drop itself is within the bound.
    """
    finalists_tried: list[Trial] = []
    for number, finalist in enumerate(finalists[:LOOKS]):
        (trial,) = measure(number, [finalist.candidate])
        finalists_tried.append(trial)
        if not trial.why and trial.drop(level()).high <= max_drop:
            return Verdict(trial, "holds", finalists_tried)
    within = [s for s in finalists_tried if not s.why and s.points <= max_drop]
    if not within:
        return Verdict(None, "none", finalists_tried)
    return Verdict(min(within, key=lambda s: (s.drop(level()).high, *cheapest(s))), "within", finalists_tried)


@dataclass(frozen=True)
class Judged:
    """The confirmation with what it is held against."""

    baseline: Trial
    default: Trial
    winner: Trial
    how: str  # "holds", "within", "default" or "baseline"
    finalists_tried: list[Trial]


@dataclass
class Stand:
    """Where candidates are confirmed, on the problems of `baseline`."""

    baseline: Baseline  # exact: the tokens of one a forward, in as few forwards as the default's own parts allow
    default: Candidate
    cost: str
    report: Callable[[str], object]
    rows: dict[Candidate, list[Outcome | None]] = field(default_factory=dict)

    def judge(self, finalists: Sequence[Trial], max_drop: float) -> Judged:
        """Confirms the finalists; where none will do, the default if it will, else the baseline is the winner.

        The baseline is decoded where a candidate is not right. Only where nothing will do then, it is decoded on all
        problems: what it gets wrong may speak for a candidate. Raises PardecError where it cannot be decoded.
        """
        self._decode(1, [self.default, *(finalist.candidate for finalist in finalists[:1])])
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
            baseline, default = self._trial(self.baseline.candidate), self._trial(self.default)
            if verdict.winner is not None:
                return Judged(baseline, default, verdict.winner, verdict.how, verdict.finalists_tried)
            if not default.why and default.points <= max_drop and cheapest(default) < cheapest(baseline):
                return Judged(baseline, default, default, "default", verdict.finalists_tried)
        return Judged(baseline, default, baseline, "baseline", verdict.finalists_tried)

    @property
    def _count(self) -> int:
        return len(self.baseline.chosen.owners)

    def _decode(self, look: int, candidates: Sequence[Candidate]) -> None:
        """Decodes candidates on every problem, and the baseline beside them where they are not right."""
        known = (*self.rows, self.baseline.candidate)
        fresh = [candidate for candidate in dict.fromkeys(candidates) if candidate not in known]
        if not fresh:
            return
        stage, first = f"confirmation-{look}", min(WHOLE, self._count) if look == 1 else 0
        self.report(f"confirmation {look}: {', '.join(map(str, fresh))} on {self._count} fresh problems")
        rows: dict[Candidate, list[Outcome | None]] = {candidate: [] for candidate in fresh}
        if first:
            together = self.baseline.together(stage, fresh, 0, first)
            rows = {candidate: together[candidate] for candidate in fresh}
        if first < self._count:
            bench, chosen = self.baseline.bench, self.baseline.chosen
            more = bench.measure(f"{stage}-rest" if first else stage, fresh, chosen, first, self._count)
            rows = {candidate: rows[candidate] + more[candidate] for candidate in fresh}
        self.baseline.beside(f"{stage}-baseline", rows, 0, self._count)
        self.rows |= rows

    def _trial(self, candidate: Candidate) -> Trial:
        baseline, trial = self.baseline.outcomes(0, self._count), Trial(candidate, self.cost)
        trial.add(baseline, self.rows.get(candidate, baseline))
        return trial
