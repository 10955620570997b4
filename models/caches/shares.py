"""How many of a count a share is, rounded down or up: the slack keeps 0.29 * 100 = 28.999999999999996 at 29."""

from __future__ import annotations

import numpy as np

_SLACK = 1e-6  # more than what a product of floats is off by


def floor_of_share(share: float, count: int | np.ndarray) -> np.ndarray:
    """`share` of `count` [...], rounded down -> [...] int64.

    >>> floor_of_share(0.29, np.array([100, 101, 104]))
    array([29, 29, 30])
    """
    whole: np.ndarray = np.floor(share * count + _SLACK).astype(np.int64)
    return whole


def ceil_of_share(share: float, count: int | np.ndarray) -> np.ndarray:
    """`share` of `count` [...], rounded up -> [...] int64.

    >>> ceil_of_share(0.14, np.array([50, 51]))  # 0.14 * 50 = 7.000000000000001
    array([7, 8])
    """
    whole: np.ndarray = np.ceil(share * count - _SLACK).astype(np.int64)
    return whole
