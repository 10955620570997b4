"""Drafts a tree from the latest predicted successors of each token, which forwards yield at no extra cost.

Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling,
https://arxiv.org/abs/2408.08696

    tree:    child r of a node x is M[x, r]
    update:  M[x] <- the k most likely tokens after x, for every node x fed, accepted or not; the last of equal x

Deviates from the authors' code: a token that was never fed has no candidates (there it has token 0), so the first trees
are small; every round updates the matrix, including the last one and the prompt's forward (`prefill=false` takes of the
latter the last token alone); each row has a matrix of its own for one request. With `keep=true` all rows and requests
that this sampler object decodes with a model share one matrix.
Exact: greedy and distribution, with an exact acceptance: every drafted token is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden

from ...batching import RowState
from ...host_transfer import upload
from ...limits import check_nodes
from ...registry import register
from ...traits import NONE, Trait
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from ..ops.trees import Template, compact, ranked


class Matrix(RowState):
    """k candidates for each token, in one table per row or one for all rows; -1 until a token is written."""

    per_row = ("tables",)

    def __init__(self, rows: int | None, vocab: int, k: int, device: torch.device) -> None:
        self.shared = rows is None
        self.vocab, self.k = vocab, k
        # After the tables: a line of -1 that is only read, and one that receives masked writes.
        self.table = torch.full(((rows or 1) * vocab + 2, k), -1, dtype=torch.int32, device=device)

    @property
    def tables(self) -> Tensor | None:
        """[B, V, k]: the table of each live row; None: all rows share one table."""
        return None if self.shared else self.table[:-2].view(-1, self.vocab, self.k)

    @tables.setter
    def tables(self, tables: Tensor | None) -> None:
        if tables is not None:
            self.table = torch.cat((tables.flatten(0, 1), self.table[-2:]))

    def read(self, tokens: Tensor, ranks: Tensor) -> Tensor:
        """[B, n] int64: candidate `ranks` [n] of `tokens` [B, n], -1 if there is none or the token is -1."""
        index = torch.where(tokens < 0, len(self.table) - 2, tokens + self._first(len(tokens)))
        return self.table[index, ranks].long()

    def write(self, rows: Tensor, tokens: Tensor, distributions: Tensor, real: Tensor) -> None:
        """Stores the top of `distributions` [n, T, V] after `tokens` [n, T] of live `rows` [n], where `real`.

        Of equal tokens the last one is stored (with a shared table that of the last row).
        """
        top = distributions.topk(min(self.k, distributions.shape[-1])).indices.int().flatten(0, 1)
        first = 0 if self.shared else rows[:, None] * self.vocab
        index, order = torch.where(real & (tokens >= 0), tokens + first, -1).flatten().sort(stable=True)
        last = index != torch.cat((index[1:], index.new_full((1,), -1)))
        target = torch.where(last & (index >= 0), index, len(self.table) - 1)
        self.table[target, : top.shape[1]] = top[order]

    def _first(self, batch: int) -> Tensor | int:
        """[B, 1]: the first line of each row's table."""
        return 0 if self.shared else torch.arange(batch, device=self.table.device)[:, None] * self.vocab


_LOGITS = 1 << 24  # logits of the prompt computed at a time


@register("recycling", exact="greedy", checked="reference:reference.naive_lookup.Recycled joint")
class Recycling(Drafter):
    k: Annotated[int, "candidates remembered for each token"] = 8
    tree: Annotated[str, "nodes at each depth"] = "8-21-25-15-8-3"
    prefill: Annotated[bool, "the prompt's forward fills the matrix too"] = True
    keep: Annotated[bool, "one matrix for all rows and requests of the sampler object; drafts then depend on them"] = (
        False
    )

    def __post_init__(self) -> None:
        self.require("k", least=1)
        self.require("k", most=1024)  # kept of every token of the vocabulary
        above = 1
        for count in self._counts:
            if not 1 <= count <= above * self.k:
                raise SpecError(
                    f"recycling: tree={self.tree} has {count} nodes below {above}, but a node has at most k={self.k}",
                    hint="tree=8-21-25 has 8 nodes at depth 1, 21 at depth 2, 25 at depth 3",
                )
            above = count
        check_nodes("recycling", sum(self._counts))
        # Not a field: the matrices are no part of the sampler's identity.
        object.__setattr__(self, "_matrices", WeakKeyDictionary[Any, Matrix]())

    @property
    def _counts(self) -> tuple[int, ...]:
        try:
            return tuple(map(int, self.tree.split("-")))
        except ValueError:
            raise SpecError(
                f"recycling: tree lists the number of nodes of each depth, joined by '-', got {self.tree!r}",
                hint="tree=8-21-25 has 8 nodes at depth 1, 21 at depth 2, 25 at depth 3",
            ) from None

    def width(self, model: LanguageModel) -> int:
        return 1 + sum(self._counts)

    @property
    def provides(self) -> frozenset[Trait]:
        """The prompt's forward fills the matrix too, with `prefill`."""
        prompt = frozenset({Trait.READS_PROMPT}) if self.prefill else NONE
        return prompt | {Trait.KEEPS_DRAFTS} if self.keep else prompt

    def start(self, context: DecodeContext) -> _Recycled:
        text, vocab = context.text, context.model.vocab_size
        tree = ranked(self._counts, self.k).to(text.device)
        if not self.keep:
            return _Recycled(Matrix(len(text), vocab, self.k, text.device), tree)
        matrices: WeakKeyDictionary[Any, Matrix] = vars(self)["_matrices"]
        stack = context.model.decoder
        if stack not in matrices or matrices[stack].table.device != text.device:
            matrices[stack] = Matrix(None, vocab, self.k, text.device)
        return _Recycled(matrices[stack], tree)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: _Recycled) -> Draft:
        text, tree, matrix = context.text, state.tree, state.matrix
        tokens = torch.full((len(text), len(tree.parents)), -1, device=text.device)
        tokens[:, 0] = text.last
        for level in tree.levels:
            tokens[:, level] = matrix.read(tokens[:, tree.parents[level]], tree.ranks[level])
        deep = upload(remaining, text.device)[:, None]
        real = (tokens >= 0) & (tree.depths <= deep.clamp(min=0))
        if text.device.type != "cpu":  # reading which nodes are real would synchronize: the others are not tested
            sizes = np.full_like(text.length, tokens.shape[1])
            tree_, levels = (tree.parents, tree.depths), len(tree.levels)
            return Draft(tokens.clamp(min=0), sizes, text.length - 1, *tree_, levels=levels, verify=real)
        tokens, parents, depths, sizes = compact(tokens, tree.parents, tree.depths, real)
        return Draft(
            tokens.clamp(min=0),
            sizes,
            text.length - 1,
            parents,
            depths,
            levels=min(len(tree.levels), tokens.shape[1] - 1),
        )

    def observe(self, outcome: RoundResult, context: DecodeContext, state: _Recycled) -> None:
        draft = outcome.draft
        batch, width = draft.tokens.shape
        device = draft.tokens.device
        real = draft.tested | (torch.arange(width, device=device) == 0)
        state.matrix.write(torch.arange(batch, device=device), draft.tokens, outcome.distributions.raw, real)

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: _Recycled) -> None:
        text = context.text
        device, width = text.device, int(text.length[rows].max())
        which = upload(rows, device)
        tokens, lengths = text.tokens[which], upload(text.length[rows], device)[:, None]
        step = max(1, _LOGITS // (len(rows) * context.model.vocab_size))
        for start in range(0, width, step):
            positions = torch.arange(start, min(start + step, width), device=device).expand(len(rows), -1)
            real = positions < lengths
            distributions = hidden.logits(torch.where(real, positions, -1))
            state.matrix.write(which, tokens[:, start : start + step][:, : positions.shape[1]], distributions, real)


@dataclass
class _Recycled(RowState):
    """The state of one request; the tree is shared by all rows."""

    per_row = ("matrix",)
    matrix: Matrix
    tree: Template
