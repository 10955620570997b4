"""Schedules that are fixed beforehand."""

from __future__ import annotations

import numpy as np


def even_share(total: np.ndarray | int, parts: np.ndarray | int, index: np.ndarray | int) -> np.ndarray:
    """What part `index` gets when `total` is split evenly over `parts`; the first `total % parts` get one more.

    This is the linear schedule of LLaDA (https://arxiv.org/abs/2502.09992): tokens of a block over its steps.

    >>> even_share(7, 3, np.arange(3))
    array([3, 2, 2])
    """
    total, parts, index = np.asarray(total), np.asarray(parts), np.asarray(index)
    share: np.ndarray = total // parts + (index < total % parts)
    return share
