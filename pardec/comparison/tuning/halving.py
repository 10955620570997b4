"""Successive halving: each rung measures what is left on more problems, and drops what cannot be the answer.

A candidate goes when it failed, when it is credibly worse than the bound allows, and when one that costs about the same
promises more: what it saves of the baseline's cost, times how well its scores go with the bound. Only its neighbours in
cost can put it out, since what is cheaper is often worse, and the few problems of the first rungs do not show it. The
baseline is measured on the same problems, so that quality is compared problem by problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pardec.models.errors import SpecError

from .paired import Drop, drop, probability
from .space import Candidate

ETA = 3  # a rung keeps one in so many
FINALISTS = 4  # in the last rung
FIRST = 8  # least problems of the first rung, where tune itself chooses how many candidates there are
TIE = 0.01  # costs that differ by less than this share are the same
_LEAST = 1e-9  # a cost that has a logarithm


@dataclass(frozen=True, slots=True)
class Outcome:
    """One candidate on one problem."""

    score: float
    nfe: float
    tokens_fed: float
    seconds: float


# Where the baseline need not be decoded, since the candidates are right: that it is right too is the worst for them.
ASSUMED = Outcome(1.0, math.nan, math.nan, math.nan)

# Candidates decode the problems [start, stop) of the tuning ones: an outcome each, None where the decode failed.
Measure = Callable[[Sequence[Candidate], int, int], Mapping[Candidate, Sequence[Outcome | None]]]


@dataclass
class Trial:
    """What is known of a candidate."""

    candidate: Candidate
    cost: str  # the figure of an outcome that is to be small
    outcomes: list[Outcome] = field(default_factory=list)
    baseline: list[Outcome] = field(default_factory=list)  # on the same problems
    place: int = 0  # among the candidates; earlier ones are plainer
    why: str = ""  # it was dropped
    rung: int = 0  # the last that measured it

    def mean(self, figure: str) -> float:
        """Over the problems decoded; inf where there are none."""
        return _mean(self.outcomes, figure)

    def add(self, baseline: Sequence[Outcome | None], own: Sequence[Outcome | None]) -> None:
        """Outcomes on more problems; those on which the baseline failed count for nobody."""
        if None in own:
            self.why = "failed"
        pairs = [(base, mine) for base, mine in zip(baseline, own, strict=True) if base and mine]
        self.baseline += [base for base, _ in pairs]
        self.outcomes += [mine for _, mine in pairs]

    @property
    def step(self) -> int:
        """The cost on a scale whose steps are `TIE` wide: what shares a step costs the same."""
        price = self.mean(self.cost)
        return round(math.log(max(price, _LEAST)) / math.log1p(TIE))

    @property
    def points(self) -> float:
        """Quality lost so far, in points."""
        lost = [base.score - own.score for base, own in zip(self.baseline, self.outcomes, strict=True)]
        return round(100 * math.fsum(lost) / len(lost), 9)

    def promise(self, max_drop: float) -> float:
        """The share of the baseline's cost that it can be expected to save, if nothing is saved beyond the bound."""
        base, own = ([outcome.score for outcome in some] for some in (self.baseline, self.outcomes))
        return probability(base, own, max_drop) * (1 - self.mean(self.cost) / _mean(self.baseline, self.cost))

    def drop(self, level: float = 0.95) -> Drop:
        return drop([o.score for o in self.baseline], [o.score for o in self.outcomes], level)


def _mean(outcomes: Sequence[Outcome], figure: str) -> float:
    values = [value for outcome in outcomes if not math.isnan(value := getattr(outcome, figure))]
    return math.fsum(values) / len(values) if values else math.inf


@dataclass(frozen=True)
class Search:
    """What the halving came to."""

    trials: list[Trial]  # of every candidate, the finalists first and best first
    finalists: int
    problems: int  # of the tuning ones, used
    spent: int  # decodes, the baseline's included
    rungs: int


def rungs(candidates: int) -> int:
    """How many it takes: those that thin out so many candidates, and one for the finalists."""
    count = 1
    while candidates > FINALISTS:
        candidates, count = _keep(candidates), count + 1
    return count


def _keep(candidates: int) -> int:
    return max(FINALISTS, math.ceil(candidates / ETA))


def room(budget: int) -> int:
    """The most candidates whose first rung has `FIRST` problems."""
    count = 1
    while budget // rungs(count + 1) // (count + 2) >= FIRST:
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
) -> Search:
    """Finds the cheapest candidates that keep the quality of the baseline.

    Args:
        budget: decodes in all, one candidate on one problem each, the baseline's included; never more are made.
        problems: how many tuning problems there are.
        max_drop: points of quality that may be lost.

    Raises SpecError for a budget that is too small for a single problem a rung.
    """
    planned = rungs(len(candidates))
    if budget // planned // (len(candidates) + 1) < 1:
        raise SpecError(
            f"a budget of {budget} decodes is too small for {len(candidates)} candidates in {planned} rungs",
            hint=f"it takes at least {planned * (len(candidates) + 1)}",
        )
    trials = [Trial(candidate, cost, place=place) for place, candidate in enumerate(candidates)]
    alive, used, spent = trials, 0, 0
    for rung in range(planned):
        width = len(alive) + 1
        count = min((budget - spent) // (planned - rung) // width, problems - used)
        if count > 0:
            report(f"rung {rung + 1} of {planned}: {len(alive)} candidates on {count} problems")
            measured = measure([baseline, *(trial.candidate for trial in alive)], used, used + count)
            for trial in alive:
                trial.add(measured[baseline], measured[trial.candidate])
                trial.rung = rung + 1
            used, spent = used + count, spent + width * count
        alive = _kept(alive, _keep(len(alive)), max_drop)
        if not alive or used == problems:
            break
    alive = _kept(alive, FINALISTS, max_drop)
    gone = [trial for trial in trials if trial.why]
    ranked = sorted((s for s in gone if s.outcomes), key=lambda s: (-s.rung, *_best(s, max_drop)))
    return Search([*alive, *ranked, *(s for s in gone if not s.outcomes)], len(alive), used, spent, planned)


def _kept(alive: Sequence[Trial], keep: int, max_drop: float) -> list[Trial]:
    """One of each `keep` groups of neighbours in cost, best first; the others are told why they go."""
    for trial in alive:
        if not trial.why and not trial.outcomes:
            trial.why = "failed"
        if not trial.why and trial.drop().low > max_drop:
            trial.why = "loses too much"
    by_cost = sorted((s for s in alive if not s.why), key=cheapest)
    kept, count = [], min(keep, len(by_cost))
    for group in range(count):
        some = by_cost[group * len(by_cost) // count : (group + 1) * len(by_cost) // count]
        kept.append(min(some, key=lambda s: _best(s, max_drop)))
        for trial in some:
            trial.why = "" if trial is kept[-1] else "promises less"
    return sorted(kept, key=lambda s: _best(s, max_drop))


def _best(trial: Trial, max_drop: float) -> tuple[float, int, tuple[int, int, int], int]:
    """Sorts by promise in steps of a percent; within one by cost and simplicity."""
    return -round(trial.promise(max_drop), 2), *cheapest(trial)


def cheapest(trial: Trial) -> tuple[int, tuple[int, int, int], int]:
    """Sorts by cost, ties by what is simpler, then by what comes first among the candidates: the default does."""
    return trial.step, trial.candidate.size, trial.place
