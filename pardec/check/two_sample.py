"""A permutation test of whether two samples of texts come from one distribution, and the faults that it would find.

    statistic = sum over prompts, positions and tokens of (a - b)^2 / (a + b)

a and b count how often a token, or a pair of neighbouring tokens, stands at a position in the one and in the other
sample. If both come from one distribution, a prompt's rows can be exchanged: the p-value holds for any number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ALPHA = 0.001  # a smaller p-value is a fault where the sampler promises the distribution
POWER = 0.8
SHARES = (0.05, 0.1, 0.2, 0.4, 0.8)  # tested faults: this share of the tokens is replaced by the likeliest one
_PERMUTATIONS = 1999
_TRIALS = 40  # trials of the test per share
_ENDED = -1

Sample = Sequence[Sequence[Sequence[int]]]  # per prompt and row: tokens


@dataclass(frozen=True)
class TwoSample:
    """The result of the test.

    Attributes:
        p: the share of permutations whose statistic is at least as large.
        rows: rows of each sample.
        positions: tokens of each row that are compared, at most.
        power: for each of SHARES, the share of trials in which the test finds a sampler that replaces this share of
            its tokens by the likeliest one at that position.
    """

    p: float
    rows: int
    positions: int
    power: dict[float, float]

    @property
    def finds(self) -> float | None:
        """The smallest share that is found with probability POWER; None: not even the largest."""
        return next((share for share, power in self.power.items() if power >= POWER), None)


def two_sample(one: Sample, other: Sample, *, positions: int = 32, seed: int = 0) -> TwoSample:
    """Tests samples of equally many rows per prompt; of each row the first `positions` tokens count."""
    generator = np.random.default_rng(seed)
    pooled = [_table([*a, *b], positions) for a, b in zip(one, other, strict=True)]  # the first half is from `one`
    observed = sum(_statistics(table, _halves(len(table))[None])[0] for table in pooled)
    null = np.zeros(_PERMUTATIONS)
    for table in pooled:
        null += _statistics(table, generator.permuted(np.tile(_halves(len(table)), (_PERMUTATIONS, 1)), axis=1))
    p = (1 + np.count_nonzero(null >= observed - 1e-9)) / (1 + _PERMUTATIONS)
    critical = float(np.quantile(null, 1 - ALPHA))
    power = {share: _power(pooled, share, critical, generator) for share in SHARES}
    return TwoSample(float(p), sum(map(len, one)), max(table.shape[1] for table in pooled), power)


def _halves(rows: int) -> np.ndarray:
    """[rows] the sign of each row: 1 in the first sample, -1 in the second."""
    return np.repeat([1, -1], [rows // 2, rows - rows // 2])


def _table(rows: Sequence[Sequence[int]], positions: int) -> np.ndarray:
    """[R, T]: the first tokens of each row, and a code for its end."""
    width = min(max(map(len, rows)), positions)
    return np.array([[*row[:width], *[_ENDED] * (width - len(row))] for row in rows], dtype=np.int64)


def _statistics(table: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """[N] the statistic of one prompt for each assignment of its rows, `signs` [N, R] in {1, -1}."""
    total = np.zeros(len(signs))
    codes = [np.unique(column, return_inverse=True)[1] for column in table.T]
    pairs = [a * (b.max() + 1) + b for a, b in pairwise(codes)]
    for column in (*codes, *pairs):
        _, code, count = np.unique(column, return_inverse=True, return_counts=True)
        often = np.flatnonzero(count > 1)  # a token that stands once adds 1 in every permutation
        if len(often) > 1:
            present = (code[:, None] == often).astype(np.float32)
            total += np.square(signs.astype(np.float32) @ present) @ (1 / count[often])
    return total


def _power(pooled: Sequence[np.ndarray], share: float, critical: float, generator: np.random.Generator) -> float:
    """The share of trials in which the statistic of rows drawn from `pooled`, half of them changed, is critical."""
    found = 0
    for _ in range(_TRIALS):
        statistic = 0.0
        for table in pooled:
            rows = table[generator.integers(len(table), size=len(table))]
            wrong = (generator.random(rows.shape) < share) & (_halves(len(rows)) < 0)[:, None]
            rows = np.where(wrong, _likeliest(table), rows)
            statistic += _statistics(rows, _halves(len(rows))[None])[0]
        found += statistic > critical
    return found / _TRIALS


def _likeliest(table: np.ndarray) -> np.ndarray:
    """[T] the commonest token at each position."""
    values = [np.unique(column, return_counts=True) for column in table.T]
    return np.array([tokens[counts.argmax()] for tokens, counts in values])
