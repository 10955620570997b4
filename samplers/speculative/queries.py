"""Queries of a drafter's own in the verify pass: behind the nodes of a draft, and seen by none of them.

Query l of node n stands step[l] + 1 positions behind n. It attends to what n attends to, to n, and to the queries
above it in the chains of n. All queries 0 come first, then all queries 1: in every row the nodes, and the queries of
the first steps, are a prefix of what is fed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Chains:
    """The queries behind one node."""

    step: tuple[int, ...]  # of each, from 0; in ascending order
    above: tuple[int, ...]  # the query that each continues, -1 for the node itself

    @property
    def steps(self) -> int:
        return max(self.step) + 1

    @staticmethod
    def single(steps: int) -> Chains:
        """One query a step, each behind the one before."""
        return Chains(tuple(range(steps)), tuple(range(-1, steps - 1)))


@dataclass(frozen=True, slots=True)
class Splice:
    """Where the queries of one step begin inside the stack."""

    layer: int  # whose outputs at the nodes are their source; they run the layers behind it
    make: Callable[[Tensor], Tensor]  # outputs [.., E] -> the queries' states [.., E]


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries behind the nodes of a draft. Of a row they are numbered behind its own nodes, without a gap."""

    chains: Chains
    index: Tensor  # [B, L, T] int64: the number of query l of node n among the row's nodes and queries, -1: none
    counts: np.ndarray  # [B, L] on the host: each row's queries 0, queries 1, and so on
    inputs: Tensor | None = None  # [L, E] input vectors
    splices: tuple[Splice, ...] = ()  # one a step instead of `inputs`: one query a step then

    def rows(self, rows: np.ndarray) -> Queries:
        """The queries of these rows."""
        where = torch.from_numpy(rows).to(self.index.device)
        return replace(self, index=self.index[where], counts=self.counts[rows])

    def until(self, length: int) -> Queries:
        """The first `length` queries of each node."""
        return replace(self, index=self.index[:, :length], counts=self.counts[:, :length])

    @property
    def total(self) -> np.ndarray:
        """[B] queries of each row."""
        total: np.ndarray = self.counts.sum(1)
        return total
