"""What a sampler loses against another on the same problems, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

_RESAMPLES = 4000
_LEAST = 1e-3
_WIDTH = 1e-9  # to which an end of the interval is found


@dataclass(frozen=True, slots=True)
class Drop:
    """Quality lost, in points: 100 times the mean difference of paired scores. Below 0 something was gained."""

    problems: int
    lost: int  # problems on which the sampler scores lower
    gained: int  # and higher
    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def drop(baseline: Sequence[float], sampler: Sequence[float], level: float = 0.95) -> Drop:
    """The drop from `baseline` to `sampler`, scores in [0, 1] of the same problems in the same order.

    Where every score is 0 or 1 the interval is Tango's score interval for paired proportions (Statistics in Medicine
    17, 1998), which only the discordant pairs move and which has a width without any; else a seeded paired bootstrap,
    never narrower than what as many pairs without a difference would leave open.

    Args:
        level: of the two-sided interval; each end alone holds with (1 + level) / 2.

    >>> print(drop([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]))
    +25.0 [-36.2, +69.9]
    """
    first, second = np.asarray(baseline, dtype=np.float64), np.asarray(sampler, dtype=np.float64)
    lost, gained, n = int((second < first).sum()), int((second > first).sum()), len(first)
    z = NormalDist().inv_cdf((1 + level) / 2)
    if np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
        low, high = -_upper(gained, lost, n, z), _upper(lost, gained, n, z)
    else:
        low, high = _bootstrap(first - second, level)
        least = _upper(0, 0, n, z)
        low, high = min(low, -least), max(high, least)
    return Drop(n, lost, gained, 100 * float((first - second).mean()), 100 * low, 100 * high)


def probability(baseline: Sequence[float], sampler: Sequence[float], points: float) -> float:
    """How well the scores go with a drop of at most `points`, in [0, 1]: one half where they say just that drop.

    The share of the score test's law above what was seen; graded scores take the normal law of their mean.
    """
    first, second = np.asarray(baseline, dtype=np.float64), np.asarray(sampler, dtype=np.float64)
    lost, gained, n, bound = int((second < first).sum()), int((second > first).sum()), len(first), points / 100
    bound = max(bound, _LEAST)  # where nothing differs, a bound of 0 has no error to measure in
    if np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
        z = _statistic(lost, gained, n, bound)
    else:
        error = max(float((first - second).std()), math.sqrt(bound * (1 - bound))) / math.sqrt(n)
        z = (float((first - second).mean()) - bound) / error
    return NormalDist().cdf(-z)


def _upper(lost: int, gained: int, n: int, z: float) -> float:
    """The largest difference of proportions that the score test does not refuse."""
    inside, outside = (lost - gained) / n, 1.0
    while outside - inside > _WIDTH:
        middle = (inside + outside) / 2
        if _statistic(lost, gained, n, middle) > -z:
            inside = middle
        else:
            outside = middle
    return inside


def _statistic(lost: int, gained: int, n: int, difference: float) -> float:
    """Standard normal if `difference` is the true one: the observed one less that, over its constrained error."""
    a = 2 * n
    b = (2 * n - lost + gained) * difference - lost - gained
    c = -gained * difference * (1 - difference)
    gaining = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)  # likeliest share of gains under that difference
    variance = n * (2 * gaining + difference * (1 - difference))
    return (lost - gained - n * difference) / math.sqrt(variance)


def _bootstrap(differences: np.ndarray, level: float) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    resampled = rng.integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.quantile(differences[resampled].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
