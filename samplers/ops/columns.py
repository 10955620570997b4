"""Sets of positions as columns."""

from __future__ import annotations

import numpy as np


def columns_of(which: np.ndarray, blank: int) -> np.ndarray:
    """The positions of each row of `which` [B, L] bool in order -> [B, K] int64, padded with `blank`.

    >>> columns_of(np.array([[False, True, True], [True, False, False]]), 3)
    array([[1, 2],
           [0, 3]])
    """
    count = which.sum(1)
    most = int(count.max())
    columns: np.ndarray = np.argsort(~which, axis=1, kind="stable")[:, :most]
    return np.where(np.arange(most) < count[:, None], columns, blank)
