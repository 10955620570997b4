"""Static trees of candidates, and trees reduced to some of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import download, upload

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A tree whose nodes are candidates of their parents by rank; level by level, node 0 is the root."""

    parents: Tensor  # [T] int64, -1 for node 0
    ranks: Tensor  # [T] int64: rank among its parent's candidates, from 0; 0 for node 0
    depths: Tensor  # [T] int64
    levels: tuple[slice, ...]  # the nodes at depth 1, 2, ...

    @staticmethod
    def of(paths: Iterable[Path]) -> Template:
        """The tree of these nodes, each given by the ranks on its path; ancestors are added.

        >>> Template.of([(0, 0), (1,)]).parents.tolist()
        [-1, 0, 0, 1]
        """
        nodes = {path[:size] for path in paths for size in range(len(path) + 1)} | {()}
        order = sorted(nodes, key=lambda path: (len(path), path))
        index_of = {path: index for index, path in enumerate(order)}
        depths = np.array([len(path) for path in order])
        bounds = np.searchsorted(depths, np.arange(1, depths.max() + 2))
        return Template(
            torch.tensor([index_of[path[:-1]] if path else -1 for path in order]),
            torch.tensor([path[-1] if path else 0 for path in order]),
            torch.from_numpy(depths),
            tuple(slice(int(start), int(stop)) for start, stop in pairwise(bounds)),
        )

    def to(self, device: torch.device) -> Template:
        """The same tree on `device`."""
        parents, ranks, depths = (upload(each, device) for each in (self.parents, self.ranks, self.depths))
        return Template(parents, ranks, depths, self.levels)


@cache
def ranked(counts: Sequence[int], branch: int) -> Template:
    """The tree with counts[d] nodes at depth d + 1 whose nodes have up to `branch` children.

    The nodes of a depth with the smallest products of (rank + 1) along the path are taken: the most likely ones if a
    candidate's probability falls as a power of 1 / (rank + 1). A node's siblings of lower ranks are then in the tree.
    """
    level: list[Path] = [()]
    paths: list[Path] = []
    for count in counts:
        below = [(*path, rank) for path in level for rank in range(branch)]
        level = sorted(below, key=lambda path: (prod(rank + 1 for rank in path), path))[:count]
        paths += level
    return Template.of(paths)


def compact(
    tokens: Tensor, parents: Tensor, depths: Tensor, survivors: Tensor
) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """The tree of the `survivors` [B, T], which include node 0 and all parents, as the first nodes of each row.

    Returns tokens, parents and depths [B, T'], and on the host how many nodes each row has [B].
    """
    sizes = download(survivors.sum(1))
    order = (~survivors).long().argsort(dim=1, stable=True)[:, : int(sizes.max())]
    index_of = survivors.long().cumsum(1) - 1  # new index of each surviving node
    above = parents.expand_as(tokens).gather(1, order)
    new_parents = torch.where(above < 0, -1, index_of.gather(1, above.clamp(min=0)))
    return tokens.gather(1, order), new_parents, depths.expand_as(tokens).gather(1, order), sizes
