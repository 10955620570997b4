"""Tokens per unit of time of a round with given lengths, and the lengths that maximise it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Round = tuple[float, float, float, float]  # drafter forwards, positions fed to the target, context, seconds


@dataclass(frozen=True)
class Costs:
    """Time of a round = fixed + draft * drafter forwards + token * positions fed + context * tokens of context."""

    fixed: float
    draft: float
    token: float
    context: float

    @staticmethod
    def fitted(rounds: Sequence[Round]) -> Costs:
        """Least squares over measured rounds; collinear costs are shared, and no cost is negative."""
        table = np.array(rounds, dtype=float)
        features = np.column_stack((np.ones(len(table)), table[:, :3]))
        scale = np.abs(features).max(0)
        scale[scale == 0] = 1
        costs = np.linalg.lstsq(features / scale, table[:, 3], rcond=1e-6)[0] / scale
        return Costs(*costs.clip(min=0).tolist())


def lengths(acceptance: np.ndarray, most: int, costs: Costs, context: float) -> np.ndarray:
    """[B] int64: tokens to draft for each row, at most `most`, that maximise the round's tokens per unit of time.

    Token j of row b adds acceptance[b] ** j expected tokens and one position to feed; the longest row determines the
    number of drafter forwards.
    """
    best, chosen = idle_rate(len(acceptance), costs, context), np.zeros(len(acceptance), dtype=np.int64)
    gains = acceptance[:, None] ** np.arange(1, most + 1)
    for deep in range(1, most + 1):
        rate, counts = prefixes(gains[:, :deep], costs, context, deep)
        if rate > best:
            best, chosen = rate, counts
    return chosen


def prefixes(survival: np.ndarray, costs: Costs, context: float, forwards: int) -> tuple[float, np.ndarray]:
    """The highest tokens per unit of time after that many drafter forwards, and the tokens of each row [B] for it.

    `survival` [B, K] is the probability that a row's first tokens are all accepted, which is what each adds. It does
    not rise along a row, so that the best choice of any size is a prefix of all tokens sorted by what they add.
    """
    rows, width = survival.shape
    gain = survival.ravel()
    order = np.argsort(-gain, kind="stable")
    fed = costs.token * np.arange(rows, rows + len(gain) + 1)
    price = costs.fixed + costs.draft * forwards + costs.context * context + fed
    rate = (rows + np.concatenate(([0.0], gain[order].cumsum()))) / np.maximum(price, 1e-12)
    at = int(rate.argmax())
    return float(rate[at]), np.bincount(order[:at] // max(width, 1), minlength=rows)


def idle_rate(rows: int, costs: Costs, context: float) -> float:
    """Tokens per unit of time of a round that drafts nothing."""
    return rows / max(costs.fixed + costs.token * rows + costs.context * context, 1e-12)
