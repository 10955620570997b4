"""Schedules of image sampling: tokens, guidance scale and head transitions per step.

left_k = max(1, min(left_(k-1) - 1, floor(S cos(pi/2 (k+1)/K)))),  all the rest at the last step
in halves: half of the tokens, rounded up, by such a schedule of K - 1 steps, the others at step K
guidance "linear": 1 + (cfg - 1) (S - left_k) / S;  "constant": cfg
transitions: last + floor((K-1-k) / (K-1) (first - last))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

Guidance = Literal["linear", "constant"]


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking:
    """A schedule of K steps over S tokens, without steps that would sample nothing."""

    bounds: np.ndarray  # [K + 1] int64: tokens known before each step, and after the last
    left: np.ndarray  # [K] int64: tokens that count as missing after each step, for its guidance
    tokens: int

    def __len__(self) -> int:
        return len(self.left)

    def step(self, known: np.ndarray) -> np.ndarray:
        """[n]: the next step of rows with known[n] known tokens, which must equal one of `bounds`."""
        step: np.ndarray = np.searchsorted(self.bounds, known)
        return step

    def scale(self, cfg: float, guidance: Guidance) -> np.ndarray:
        """[K] float64: the guidance of each step."""
        if guidance == "constant":
            return np.full(len(self), float(cfg))
        scale: np.ndarray = 1 + (cfg - 1) * (self.tokens - self.left) / self.tokens
        return scale

    def transitions(self, first: int, last: int) -> np.ndarray:
        """[K] int64: the number of head transitions at each step, evenly from `first` down to `last`.

        >>> unmasking(16, 4).transitions(50, 5)
        array([50, 35, 20,  5])
        """
        steps = np.arange(len(self))[::-1]
        each: np.ndarray = last + steps * (first - last) // max(len(self) - 1, 1)
        return each if len(self) > 1 else np.array([first])


@lru_cache(maxsize=32)
def unmasking(tokens: int, steps: int) -> Unmasking:
    """The schedule of `steps` steps over `tokens` tokens."""
    bounds, left, missing = [0], [], tokens
    for step in range(steps):
        planned = max(1, min(missing - 1, int(np.floor(tokens * np.cos(np.pi / 2 * (step + 1) / steps)))))
        after = 0 if step == steps - 1 else planned
        if after < missing:
            bounds.append(tokens - after)
            left.append(planned)
            missing = after
    return Unmasking(np.array(bounds), np.array(left), tokens)


@lru_cache(maxsize=32)
def unmasking_in_halves(tokens: int, steps: int) -> Unmasking:
    """The schedule of half of the tokens, rounded up, in all steps but the last, which has the others."""
    if min(tokens, steps) < 2:
        return unmasking(tokens, steps)
    later = tokens // 2
    first = unmasking(tokens - later, min(steps - 1, tokens - later))
    return Unmasking(np.append(first.bounds, tokens), np.append(first.left + later, 1), tokens)
