"""The confirmation: the best of a search on problems that the search never saw, until one holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pardec.comparison.tuning.bench import Bench, Chosen
from pardec.comparison.tuning.halving import Outcome, Standing, cheapest
from pardec.comparison.tuning.space import Candidate
from pardec.models.errors import PardecError

LOOKS = 3  # candidates confirmed at most
SURE = 0.95  # that a candidate which holds loses no more than the bound, over all looks together
FEWEST, MOST = 100, 500  # problems of a confirmation, where tune itself chooses

# Outcomes of candidates on every confirmation problem, as standings with the baseline's beside them.
Confirm = Callable[[int, Sequence[Candidate]], Sequence[Standing]]


@dataclass(frozen=True)
class Verdict:
    """What the confirmation came to."""

    winner: Standing | None  # None: nothing holds, nor may
    how: str  # "holds", "within" or "none"
    looked: list[Standing]  # in the order of the looks


def level() -> float:
    """Of the two-sided interval of one look: an end of it errs with the share of 1 - `SURE` that each look has."""
    return 1 - 2 * (1 - SURE) / LOOKS


def enough(max_drop: float) -> int:
    """Problems with which a candidate that loses nothing holds, within `FEWEST` and `MOST`."""
    z, share = NormalDist().inv_cdf((1 + level()) / 2), max_drop / 100
    return MOST if share <= 0 else min(max(math.ceil(z * z * (1 - share) / share), FEWEST), MOST)


def confirm(finalists: Sequence[Standing], measure: Confirm, max_drop: float) -> Verdict:
    """Looks at one after the other until one holds: the upper end of its drop is within the bound.

    Each look has its share of the error (Bonferroni), so that the first that holds can be taken. Where none does, the
    one with the least upper end is taken of those whose drop itself is within the bound.
    """
    looked: list[Standing] = []
    for number, finalist in enumerate(finalists[:LOOKS]):
        (standing,) = measure(number, [finalist.candidate])
        looked.append(standing)
        if not standing.why and standing.drop(level()).high <= max_drop:
            return Verdict(standing, "holds", looked)
    within = [s for s in looked if not s.why and s.points <= max_drop]
    if not within:
        return Verdict(None, "none", looked)
    return Verdict(min(within, key=lambda s: (s.drop(level()).high, *cheapest(s))), "within", looked)


@dataclass(frozen=True)
class Judged:
    """The confirmation with what it is held against."""

    baseline: Standing
    default: Standing
    winner: Standing
    how: str  # "holds", "within", "default" or "baseline"
    looked: list[Standing]


@dataclass(frozen=True)
class Stand:
    """Where candidates are confirmed."""

    bench: Bench
    chosen: Chosen
    baseline: Candidate
    default: Candidate
    exact: Candidate  # the baseline as it is advised: its tokens, in as few forwards as the default's own parts allow
    cost: str
    told: Callable[[str], object]

    def judge(self, finalists: Sequence[Standing], max_drop: float) -> Judged:
        """Confirms the finalists; where none will do, the default if it will, else the baseline is the winner.

        Raises:
            PardecError: the baseline could not be decoded.
        """
        first = [finalist.candidate for finalist in finalists[:1]]
        rows = self._measured(1, [self.baseline, self.default, *first])  # together, so that times compare
        known = {candidate: self._standing(candidate, rows, rows[self.baseline]) for candidate in rows}
        baseline, default = known[self.baseline], known[self.default]
        if not baseline.outcomes:
            raise PardecError(
                f"the baseline {self.baseline} could not be decoded", hint=f"try pardec generate -s {self.baseline}"
            )

        def measure(look: int, candidates: Sequence[Candidate]) -> list[Standing]:
            fresh = [candidate for candidate in candidates if candidate not in known]
            if fresh:
                more = self._measured(look + 1, fresh)
                known.update({one: self._standing(one, more, rows[self.baseline]) for one in more})
            return [known[candidate] for candidate in candidates]

        verdict = confirm(finalists, measure, max_drop)
        if verdict.winner is not None:
            return Judged(baseline, default, verdict.winner, verdict.how, verdict.looked)
        if not default.why and default.points <= max_drop and cheapest(default) < cheapest(baseline):
            return Judged(baseline, default, default, "default", verdict.looked)
        (exact,) = measure(len(verdict.looked), [self.exact])
        return Judged(baseline, default, exact, "baseline", verdict.looked)

    def _measured(self, look: int, candidates: Sequence[Candidate]) -> dict[Candidate, list[Outcome | None]]:
        some, count = list(dict.fromkeys(candidates)), len(self.chosen.owners)
        self.told(f"confirmation {look}: {', '.join(map(str, some))} on {count} fresh problems")
        return self.bench.measure(f"confirmation-{look}", some, self.chosen, 0, count)

    def _standing(
        self,
        candidate: Candidate,
        rows: Mapping[Candidate, Sequence[Outcome | None]],
        baseline: Sequence[Outcome | None],
    ) -> Standing:
        standing = Standing(candidate, self.cost)
        standing.add(baseline, rows[candidate])
        return standing
