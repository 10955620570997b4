"""Round numbers on the axes of figures."""

from __future__ import annotations

import math


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers between two.

    >>> ticks(0.4, 1.02)
    [0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= raw)
    return [
        float(f"{at * step:.12g}") for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten, 1 alone over more than three powers, round numbers where that gives too few.

    >>> log_ticks(3, 60), log_ticks(3, 4), log_ticks(1, 50000)
    ([5.0, 10.0, 20.0, 50.0], [3.0, 3.2, 3.4, 3.6, 3.8, 4.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    found = [times * 10.0**power for power in powers for times in digits if low <= times * 10.0**power <= high]
    return found if len(found) > 2 else ticks(low, high)
