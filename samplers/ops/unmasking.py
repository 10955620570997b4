"""How many tokens of an image each step samples, how strongly it is guided, and how many transitions its head takes.

left_k = max(1, min(left_(k-1) - 1, floor(S cos(pi/2 (k+1)/K)))),  all the rest at the last step
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
    """K steps over S tokens; steps that would sample nothing are left out."""

    bounds: np.ndarray  # [K + 1] int64: tokens known before each step, and after the last
    left: np.ndarray  # [K] int64: tokens that the guidance of each step counts as missing after it
    tokens: int

    def __len__(self) -> int:
        return len(self.left)

    def step(self, known: np.ndarray) -> np.ndarray:
        """[n]: the step that comes next where known[n] tokens are known, which must be at a bound."""
        step: np.ndarray = np.searchsorted(self.bounds, known)
        return step

    def scale(self, cfg: float, guidance: Guidance) -> np.ndarray:
        """[K] float64: the guidance of each step."""
        if guidance == "constant":
            return np.full(len(self), float(cfg))
        scale: np.ndarray = 1 + (cfg - 1) * (self.tokens - self.left) / self.tokens
        return scale

    def transitions(self, first: int, last: int) -> np.ndarray:
        """[K] int64: the transitions of the head at each step, from `first` evenly down to `last`.

        >>> unmasking(16, 4).transitions(50, 5)
        array([50, 35, 20,  5])
        """
        steps = np.arange(len(self))[::-1]
        each: np.ndarray = last + steps * (first - last) // max(len(self) - 1, 1)
        return each if len(self) > 1 else np.array([first])


@lru_cache(maxsize=32)
def unmasking(tokens: int, steps: int) -> Unmasking:
    """The schedule of `steps` over `tokens`."""
    bounds, left, missing = [0], [], tokens
    for step in range(steps):
        planned = max(1, min(missing - 1, int(np.floor(tokens * np.cos(np.pi / 2 * (step + 1) / steps)))))
        after = 0 if step == steps - 1 else planned
        if after < missing:
            bounds.append(tokens - after)
            left.append(planned)
            missing = after
    return Unmasking(np.array(bounds), np.array(left), tokens)
