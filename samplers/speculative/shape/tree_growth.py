"""Shared by the shapes: a tree that grows level by level, and the stopping by a length controller."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import download, upload
from ...ops.position_sets import first_columns
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, Length
from ..sequences import Sequences


class Tree:
    """The nodes grown so far, with a value each; node 0 is the row's last committed token.

    Every level is added after the ones above, siblings in order, so any choice of nodes that includes their parents
    is in topological order. On a CPU it grows in arrays: a level is a handful of numbers, and PyTorch begins no
    operation in the time that all of them take there. `DeviceTree` is for other devices; shapes use what both have.
    """

    xp: Any = np  # the module of functions for the tree's arrays

    def __init__(self, text: Sequences) -> None:
        self.text = text
        rows = np.arange(len(text))[:, None]
        self.rows = self.own(rows)  # [B, 1], to index with
        self.tokens = self.own(text.host[rows, text.length[:, None] - 1])  # [B, M]
        self.parents = self.xp.full_like(self.tokens, -1)
        self.depths = self.xp.zeros_like(self.tokens)
        self.values = self.own(np.ones(self.tokens.shape))  # nodes are chosen by value; 0 is no node
        self.levels = 0

    @staticmethod
    def of(text: Sequences) -> Tree:
        """A tree of node 0 alone."""
        return (Tree if text.device.type == "cpu" else DeviceTree)(text)

    def own(self, values: Any) -> Any:
        """`values`, an array or a tensor, in the form of the tree's own arrays."""
        return values if isinstance(values, np.ndarray) else values.numpy()

    def put(self, values: Any) -> Tensor:
        """An array of the tree as a tensor."""
        return torch.from_numpy(values)

    def draft(self) -> Draft:
        """A draft of all nodes, for the drafting model."""
        base = self.text.length - 1
        if self.tokens.shape[1] == 1:
            return Draft.none(self.text)
        sizes = np.full_like(base, self.tokens.shape[1])
        tokens, parents, depths = map(self.put, (self.tokens, self.parents, self.depths))
        return Draft(tokens, sizes, base, parents, depths, self.levels)

    def add(self, tokens: Any, values: Any, frontier: Any) -> None:
        """Adds the next level: children [B, K, W] of the nodes `frontier` [B, K]."""
        self.levels += 1
        parents = (frontier.clip(0)[..., None] + self.xp.zeros_like(tokens)).reshape(len(tokens), -1)
        self.tokens = self.with_level(self.tokens, tokens)
        self.parents = self.with_level(self.parents, parents)
        self.depths = self.with_level(self.depths, self.xp.full_like(parents, self.levels))
        self.values = self.with_level(self.values, values)

    def with_level(self, known: Any, level: Any) -> Any:
        """Appends the N values of a new `level` [B, ..] to the `known` values [B, M]; returns [B, M + N]."""
        return self.xp.concatenate((known, level.reshape(len(known), -1)), 1)

    def best(self, count: int) -> Any:
        """[B, M] bool: node 0 and the `count` other nodes of the highest values above 0; the first ones on ties."""
        return self.xp.concatenate((self.values[:, :1] == 1, self.highest(self.values[:, 1:], count)), 1)

    def highest(self, values: Any, count: int) -> Any:
        """[B, M] bool: the `count` highest of each row's `values` [B, M] that are above 0; the first ones on ties."""
        order = (-values).argsort(axis=1, kind="stable")[:, :count]
        chosen = np.zeros(values.shape, dtype=bool)
        chosen[self.rows, order] = True
        chosen &= values > 0  # excludes NaN
        return chosen

    def packed(self, chosen: Any, most: int) -> Any:
        """[B, W] int64: the indices that are `chosen` [B, M], in order, then -1; W is the most of a row."""
        counts = chosen.sum(1)
        width = int(counts.max(initial=0))
        order = (~chosen).argsort(axis=1, kind="stable")[:, :width]
        return np.where(np.arange(width) < counts[:, None], order, -1)

    def cut(self, count: int, draft_model: DraftModel) -> tuple[Draft, Any]:
        """The draft of the `count` best nodes, and their indices in the tree, [B, T]."""
        chosen, rows = self.best(count), self.rows
        nodes = self.packed(chosen, 1 + count)
        padding, nodes = nodes < 0, nodes.clip(0)
        draft_model.prune(self.put(nodes))
        new_index = chosen.cumsum(1) - 1
        parents = self.parents[rows, nodes]
        parents = self.xp.where(parents < 0, -1, new_index[rows, parents.clip(0)])
        parents[padding] = 0
        sizes, verify = self.counted(chosen, padding)
        tokens, parents, depths = map(self.put, (self.tokens[rows, nodes], parents, self.depths[rows, nodes]))
        return Draft(tokens, sizes, self.text.length - 1, parents, depths, self.levels, verify), nodes

    def counted(self, chosen: Any, padding: Any) -> tuple[np.ndarray, Tensor | None]:
        """`Draft.sizes` and `Draft.verify` of the nodes `chosen` [B, M], where `padding` [B, T] follows them."""
        return chosen.sum(1), None


class DeviceTree(Tree):
    """A tree in tensors of a device. The host does not know how many nodes a row has, and would wait to read it.

    Levels and drafts are therefore as wide as they can be. What a row lacks is padding, which is fed and not tested.
    """

    xp = torch

    def own(self, values: Any) -> Any:
        return upload(values, self.text.device)

    def put(self, values: Any) -> Tensor:
        tensor: Tensor = values
        return tensor

    def highest(self, values: Any, count: int) -> Any:
        order = (-values).argsort(dim=1, stable=True)[:, :count]
        return torch.zeros_like(values, dtype=torch.bool).scatter_(1, order, True) & (values > 0)

    def packed(self, chosen: Any, most: int) -> Any:
        return first_columns(chosen, most, -1)

    def counted(self, chosen: Any, padding: Any) -> tuple[np.ndarray, Tensor | None]:
        return np.full_like(self.text.length, padding.shape[1]), ~padding


def never_stops(context: DecodeContext) -> bool:
    """Whether no length controller ends drafts before their budgets."""
    length = context.sampler.length
    return length is None or type(length).stop is Length.stop


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
