"""Makes drafts on the host from trees of known tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...host_transfer import upload
from ..contracts import Draft
from ..sequences import Sequences

Node = tuple[int, int, int]  # token, index of the parent, depth; node 0 is the text's last token


def tree_draft(text: Sequences, rows: Sequence[Sequence[Node]], **more: Any) -> Draft:
    """A draft of one tree per row; `rows`: the nodes after node 0, parents first; `more`: arguments of `Draft`."""
    counts = np.array([len(nodes) for nodes in rows], dtype=np.int64)
    if not counts.any():
        return Draft.none(text)
    table = np.zeros((3, len(rows), int(counts.max()) + 1), dtype=np.int64)
    table[1, :, 0] = -1
    for at, nodes in enumerate(rows):
        if nodes:
            table[:, at, 1 : len(nodes) + 1] = np.array(nodes).T
    tokens, parents, depths = upload(table, text.device)
    tokens[:, 0] = text.last
    levels = int(table[2].max())
    return Draft(tokens, counts + 1, text.length - 1, parents, depths, levels, **more)


def best(nodes: Sequence[tuple[float, Node]], most: int) -> list[Node]:
    """The `most` nodes of the highest value, in descending order; no node may have a higher value than its parent.

    Parents are indices from 1 on into `nodes`, 0 for node 0, in which each stands after its parent.

    >>> best([(0.5, (7, 0, 1)), (0.2, (8, 1, 2)), (0.4, (9, 0, 1))], 2)
    [(7, 0, 1), (9, 0, 1)]
    """
    order = sorted(range(len(nodes)), key=lambda at: -nodes[at][0])[:most]  # stable: parents stay before children
    index = {0: 0} | {at + 1: new for new, at in enumerate(order, 1)}
    return [(token, index[parent], depth) for token, parent, depth in (nodes[at][1] for at in order)]
