"""Shared by the shapes: a tree that grows level by level, and the stopping by a length controller."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...host_transfer import download, upload
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel
from ..sequences import Sequences


class Tree:
    """The nodes grown so far, with a value each; node 0 is the row's last committed token.

    Every level is added after the ones above, siblings in order, so any choice of nodes that includes their parents
    is in topological order. It grows on the host: a level is a handful of numbers, and an operation on a device takes
    longer to begin than all of them to compute.
    """

    def __init__(self, text: Sequences) -> None:
        self.text = text
        self.rows = np.arange(len(text))[:, None]  # [B, 1], to index with
        self.tokens = text.host[self.rows, text.length[:, None] - 1]  # [B, M]
        self.parents = np.full_like(self.tokens, -1)
        self.depths = np.zeros_like(self.tokens)
        self.values = np.ones(self.tokens.shape)  # nodes are chosen by value; 0 is no node
        self.levels = 0

    def draft(self) -> Draft:
        """A draft of all nodes, for the drafting model."""
        base = self.text.length - 1
        if self.tokens.shape[1] == 1:
            return Draft.none(self.text)
        sizes = np.full_like(base, self.tokens.shape[1])
        tokens, parents, depths = (self._put(each) for each in (self.tokens, self.parents, self.depths))
        return Draft(tokens, sizes, base, parents, depths, self.levels)

    def add(self, tokens: np.ndarray, values: np.ndarray, frontier: np.ndarray) -> None:
        """Adds the next level: children [B, K, W] of the nodes `frontier` [B, K]."""
        self.levels += 1
        batch = len(tokens)
        parents = frontier.clip(0).repeat(tokens.shape[2], 1)
        self.tokens = np.concatenate((self.tokens, tokens.reshape(batch, -1)), 1)
        self.parents = np.concatenate((self.parents, parents), 1)
        self.depths = np.concatenate((self.depths, np.full_like(parents, self.levels)), 1)
        self.values = np.concatenate((self.values, values.reshape(batch, -1)), 1)

    def best(self, count: int) -> np.ndarray:
        """[B, M] bool: node 0 and the `count` other nodes of the highest values above 0; the first ones on ties."""
        chosen: np.ndarray = np.concatenate((self.values[:, :1] == 1, highest(self.values[:, 1:], count)), 1)
        return chosen

    def cut(self, chosen: np.ndarray, draft_model: DraftModel) -> tuple[Draft, np.ndarray]:
        """The draft of the `chosen` nodes [B, M] bool, and their indices in the tree, [B, T]."""
        nodes, rows = packed(chosen), self.rows
        padding, nodes = nodes < 0, nodes.clip(0)
        draft_model.prune(self._put(nodes))
        new_index = chosen.cumsum(1) - 1
        parents = self.parents[rows, nodes]
        parents = np.where(parents < 0, -1, new_index[rows, parents.clip(0)])
        parents[padding] = 0
        tokens, parents, depths = (
            self._put(each) for each in (self.tokens[rows, nodes], parents, self.depths[rows, nodes])
        )
        return Draft(tokens, chosen.sum(1), self.text.length - 1, parents, depths, self.levels), nodes

    def _put(self, values: np.ndarray) -> Tensor:
        return upload(values, self.text.device)


def highest(values: np.ndarray, count: int) -> np.ndarray:
    """[B, M] bool: the `count` highest of each row's `values` [B, M] that are above 0; the first ones on ties."""
    order = (-values).argsort(axis=1, kind="stable")[:, :count]
    chosen = np.zeros(values.shape, dtype=bool)
    chosen[np.arange(len(values))[:, None], order] = True
    chosen &= values > 0  # not for NaN
    return chosen


def packed(chosen: np.ndarray) -> np.ndarray:
    """[B, W] int64: the indices that are `chosen` [B, M], in order, then -1; W is the most of a row."""
    counts = chosen.sum(1)
    width = int(counts.max(initial=0))
    order = (~chosen).argsort(axis=1, kind="stable")[:, :width]
    return np.where(np.arange(width) < counts[:, None], order, -1)


def stopped_rows(
    context: DecodeContext, draft_model: DraftModel, logits: Tensor, nodes: Tensor, step: int
) -> np.ndarray | None:
    """[B] bool: the rows that stop after level `step` (from 0), which is drafted next; None if none stops.

    Args:
        logits: [B, K, V] processed, after `nodes` [B, K], of the last forward of `draft_model`.
    """
    length = context.sampler.length
    if length is None:
        return None
    estimate = draft_model.acceptance()
    sure = (logits.softmax(-1).amax(-1) if estimate is None else estimate).masked_fill(nodes < 0, 0).amax(1)
    stop = length.stop(sure, step, context, context.state(length))
    return None if stop is None else download(stop)


def drops_last(context: DecodeContext) -> bool:
    """Whether the token at which the controller stops is not drafted."""
    length = context.sampler.length
    return length is not None and Trait.DROPS_LAST in length.provides
