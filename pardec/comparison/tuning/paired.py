"""The drop in quality between two samplers on the same problems, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

_RESAMPLES = 4000
_LEAST = 1e-3
_WIDTH = 1e-9  # precision of the ends of an interval


@dataclass(frozen=True, slots=True)
class Drop:
    """Loss of quality in points: 100 times the mean difference of paired scores; negative for a gain."""

    problems: int
    lost: int  # problems on which the sampler scores lower
    gained: int  # problems on which it scores higher
    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def drop(baseline: Sequence[float], sampler: Sequence[float], level: float = 0.95) -> Drop:
    """The drop from `baseline` to `sampler`, scores in [0, 1] of the same problems in the same order.

    If every score is 0 or 1 the interval is Tango's score interval for paired proportions (Statistics in Medicine 17,
    1998), which depends on the discordant pairs and has a width even without any; else a seeded paired bootstrap, at
    least as wide as Tango's interval for the same number of equal pairs.

    Args:
        level: of the two-sided interval; each end alone has confidence (1 + level) / 2.

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
    """The one-sided p-value of the scores under a drop of at most `points`: 1/2 if the drop is exactly that.

    By the score test; for graded scores, by a normal approximation of their mean.
    """
    first, second = np.asarray(baseline, dtype=np.float64), np.asarray(sampler, dtype=np.float64)
    lost, gained, n, bound = int((second < first).sum()), int((second > first).sum()), len(first), points / 100
    bound = max(bound, _LEAST)  # without differences, a bound of 0 has no standard error
    if np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
        z = _statistic(lost, gained, n, bound)
    else:
        error = max(float((first - second).std()), math.sqrt(bound * (1 - bound))) / math.sqrt(n)
        z = (float((first - second).mean()) - bound) / error
    return NormalDist().cdf(-z)


def _upper(lost: int, gained: int, n: int, z: float) -> float:
    """The largest difference of proportions that the score test does not reject."""
    inside, outside = (lost - gained) / n, 1.0
    while outside - inside > _WIDTH:
        middle = (inside + outside) / 2
        if _statistic(lost, gained, n, middle) > -z:
            inside = middle
        else:
            outside = middle
    return inside


def _statistic(lost: int, gained: int, n: int, difference: float) -> float:
    """The score statistic of the hypothesis that the true difference is `difference`; standard normal if it is."""
    a = 2 * n
    b = (2 * n - lost + gained) * difference - lost - gained
    c = -gained * difference * (1 - difference)
    gaining = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)  # maximum likelihood share of gains
    variance = n * (2 * gaining + difference * (1 - difference))
    return (lost - gained - n * difference) / math.sqrt(variance)


def _bootstrap(differences: np.ndarray, level: float) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    resampled = rng.integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.quantile(differences[resampled].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
