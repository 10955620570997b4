"""An order of the tokens of an image in which those of one group are far apart and near to what is known.

Locality-aware Parallel Decoding for Efficient Autoregressive Image Generation (LPD), https://arxiv.org/abs/2507.01957

    c_i = sum of 1 / distance to the known ones of the eight neighbours of i
    a group of m: from the highest c_i on, tokens with c_i >= 1 that are no neighbours of one taken before;
    then, as long as fewer than m are taken, the token that is farthest from all taken
"""

from __future__ import annotations

import numpy as np


def local_order(rows: int, columns: int, bounds: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The rank of each token of a grid in raster order, int64 [rows * columns]: groups one after the other.

    Args:
        bounds: [K + 1] tokens known before each group, and after the last.
        keys: [rows * columns] random values; of tokens that are equal otherwise the lowest comes first, and the very
            first token is that of the lowest of all.
    """
    grid = np.stack(np.divmod(np.arange(rows * columns), columns), 1).astype(np.float64)
    distance = np.hypot(*(grid[:, None] - grid).transpose(2, 0, 1))
    near = (distance > 0) & (distance < 2)  # the eight neighbours: the next ones in a row are 2 away
    pull = np.where(near, 1 / np.where(near, distance, 1), 0)
    known, order = np.zeros(len(grid), dtype=bool), list[int]()
    for size in np.diff(bounds).tolist():
        proximity = pull @ known
        group: list[int] = []
        blocked = known | (proximity < 1 - 1e-9)
        for token in np.lexsort((keys, -proximity)).tolist():
            if len(group) < size and not blocked[token]:
                group.append(token)
                blocked |= near[token]
        free = ~known
        free[group] = False
        while len(group) < size:
            gap = distance[:, group].min(1) if group else proximity
            best = np.flatnonzero(free & (gap >= gap[free].max() - 1e-9))
            token = int(best[keys[best].argmin()])
            group.append(token)
            free[token] = False
        known[group] = True
        order += group
    rank = np.empty(len(grid), dtype=np.int64)
    rank[order] = np.arange(len(grid))
    return rank
