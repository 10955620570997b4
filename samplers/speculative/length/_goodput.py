"""Tokens per unit of time: what a round of given lengths yields and costs, and the lengths that make most of it."""

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
        """By least squares over measured rounds; what cannot be told apart shares, and no cost is negative."""
        seen = np.array(rounds, dtype=float)
        features = np.column_stack((np.ones(len(seen)), seen[:, :3]))
        scale = np.abs(features).max(0)
        scale[scale == 0] = 1
        found = np.linalg.lstsq(features / scale, seen[:, 3], rcond=1e-6)[0] / scale
        return Costs(*found.clip(min=0).tolist())


def lengths(uniform: np.ndarray, most: int, costs: Costs, context: float) -> np.ndarray:
    """[B] int64: tokens to draft for each row, at most `most`, so that the round's tokens per time are the most.

    Token j of row b adds chance[b] ** j tokens and one position to feed; the longest row says how often the drafter
    runs. For each number of drafter forwards the best choice is a prefix of all tokens by what they add.
    """
    rows = len(uniform)
    idle = costs.fixed + costs.token * rows + costs.context * context
    best, chosen = rows / max(idle, 1e-12), np.zeros(rows, dtype=np.int64)
    gains = uniform[:, None] ** np.arange(1, most + 1)
    for deep in range(1, most + 1):
        gain = gains[:, :deep].ravel()
        order = np.argsort(-gain, kind="stable")
        price = idle + costs.draft * deep + costs.token * np.arange(1, len(gain) + 1)
        rate = (rows + gain[order].cumsum()) / np.maximum(price, 1e-12)
        at = int(rate.argmax())
        if rate[at] > best:
            best, chosen = float(rate[at]), np.bincount(order[: at + 1] // deep, minlength=rows)
    return chosen
