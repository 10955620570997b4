"""Overwrites, deletes and inserts: tokens of the active block may move within it.

LLaDA2.2, https://huggingface.co/inclusionAI/LLaDA2.2-flash

    needs  = 1 + inserted masks     (all that are open where the block's own masks are gone)
    write  = the select's, or the `needs` surest masks if they are more;  {j committed : argmax_j != x_j and p_j > tau}
    a write of DELETE takes its position out;  of SPLIT puts a mask before the token that stands there

at every step. The block keeps its length: masks fill it up at its end, and tokens pushed over its end are lost. It ends
when a step writes nothing, or with the last of `post` steps that began without original masks, and in any case after
`post` + 1 + its generated positions steps; that last step writes neither DELETE nor SPLIT and leaves no mask. If a
block returns to an earlier state, the least confident change takes the best token that was not yet written there.

Every token keeps the number of its first position, and every inserted mask gets one of its own: `Trace.serial`. Tokens
that the request gave stay where they are, and each stretch between them keeps its length as a block does. K/V of what
has moved are computed again by every cache that queries the whole block at every forward; other caches are refused.

Deviates from published engines (SGLang's JointThresholdInDel, whose budgets these are; the released loop gives its
steps back while a mask of its own is left): the mask is no prediction, so that no token becomes a mask again; the bound
on steps counts the positions that the block generates. The pool of experts of a block belongs to the family.
Exact: no.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...host_transfer import download, upload
from ...ops.confidence import argmax
from ...ops.distribution import Distribution
from ...ops.rank import best, top
from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Proposal, Revise, Revision, Update


@dataclass
class EditHistory:
    """The edits of each row's active block so far, of at most S steps."""

    own: Tensor  # [B, W] bool: the block's original masks and tokens written there, without inserted ones
    size: Tensor  # [B] the number of original masks
    steps: Tensor  # [B]
    after: Tensor  # [B] steps that began with no original mask left
    blocks: Tensor  # [B, S, W] int64: the tokens at the start of each step; -1 for later steps
    writes: Tensor  # [B, S, W] int64: the tokens that each step wrote, -1 for none

    @classmethod
    def empty(cls, canvas: Canvas, most: int) -> EditHistory:
        """The history before the first step; a block has at most `most` steps."""
        none = torch.zeros_like(canvas.window, dtype=torch.bool)
        count = torch.zeros(len(canvas), dtype=torch.int64, device=none.device)
        steps = torch.full((len(canvas), most, none.shape[1]), -1, device=none.device)
        return cls(none, count, count, count, steps, steps)

    def enter(self, canvas: Canvas, masks: Tensor) -> None:
        """Resets rows that have entered a new block; `masks` [B, W] are its open positions."""
        new = upload(canvas.block_started, masks.device)
        self.own = torch.where(new[:, None], masks, self.own)
        self.size = torch.where(new, masks.sum(1), self.size)
        self.steps, self.after = (torch.where(new, 0, count) for count in (self.steps, self.after))
        self.blocks, self.writes = (torch.where(new[:, None, None], -1, each) for each in (self.blocks, self.writes))

    def count(self, filled: Tensor, post: int) -> Tensor:
        """Counts a step, where `filled` [B] blocks have no masks left; returns [B] bool: whether it is the last."""
        self.steps, self.after = self.steps + 1, self.after + filled
        return (self.after >= post) | (self.steps > self.size + post)

    def untried(self, tokens: Tensor, writes: Tensor, sure: Tensor, ids: Tensor, distribution: Distribution) -> Tensor:
        """`ids` [B, W] with another token at the least confident change, in rows that had `tokens` [B, W] before."""
        met = (self.blocks == tokens[:, None]).all(-1).any(1, keepdim=True)
        changes = writes & (ids != tokens) & met
        which = changes & best(torch.where(changes, -sure, -torch.inf))
        row, column = download(which).nonzero()
        if not len(row):
            return ids
        at = upload(row, ids.device), upload(column, ids.device)
        earlier = self.writes.transpose(1, 2)[at]  # [n, S]
        return _other(ids, at, earlier, distribution)

    def record(self, tokens: Tensor, writes: Tensor, ids: Tensor) -> None:
        """Records the block before the step and the tokens that the step writes, both [B, W]."""
        at = (self.steps - 1)[:, None, None].expand(-1, 1, tokens.shape[1])
        self.blocks = self.blocks.scatter(1, at, tokens[:, None])
        self.writes = self.writes.scatter(1, at, torch.where(writes, ids, -1)[:, None])

    def move(self, source: Tensor) -> None:
        """Moves the records of each position along with its token."""
        self.own = self.own.gather(1, source.clamp(min=0)) & (source >= 0)


def without(forbidden: Sequence[int], which: Tensor, ids: Tensor, distribution: Distribution) -> Tensor:
    """`ids` [B, W] with the best token that is not `forbidden` at positions `which` [B, W]."""
    row, column = download(which).nonzero()
    if not len(row):
        return ids
    at = upload(row, ids.device), upload(column, ids.device)
    return _other(ids, at, upload(torch.tensor(forbidden), ids.device).expand(len(row), -1), distribution)


def _other(ids: Tensor, at: tuple[Tensor, Tensor], barred: Tensor, distribution: Distribution) -> Tensor:
    """`ids` [B, W] with the best tokens outside of `barred` [n, K] at the n positions `at`; -1 is padding."""
    flat = download(at[0] * ids.shape[1] + at[1])
    logits = distribution.logits_at(np.asarray(flat))
    never = torch.zeros(len(flat), logits.shape[1] + 1, dtype=torch.bool, device=ids.device)
    never.scatter_(1, torch.where(barred < 0, logits.shape[1], barred), True)
    logits = logits.masked_fill(never[:, :-1], -torch.inf)
    tokens = torch.where(logits.amax(1) > -torch.inf, argmax(logits), ids[at])
    return ids.index_put(at, tokens)


def edit_sources(movable: Tensor, deleted: Tensor, split: Tensor) -> Tensor:
    """[B, W] int64: the position whose token moves to each position, -1 for a new mask.

    What is not `movable` stays, and tokens move between such positions alone: a stretch of movable ones is filled up
    with masks at its end, or loses there what it has no room for. All are bool [B, W].

    >>> true = torch.ones(1, 5, dtype=torch.bool)
    >>> edit_sources(true, torch.arange(5) == 1, torch.arange(5) == 3).tolist()
    [[0, 2, -1, 3, 4]]
    """
    width, device = movable.shape[1], movable.device
    order = torch.arange(width, device=device).expand_as(movable)
    count = torch.where(deleted, 0, torch.where(split, 2, 1)) * movable
    total = count.cumsum(1)
    begin = torch.where(movable, 0, order + 1).cummax(1).values  # start of the stretch
    before = torch.where(movable, 0, total).cummax(1).values  # tokens that earlier stretches result in
    stop = torch.where(movable, width, order).flip(1).cummin(1).values.flip(1)
    last = begin + total - before - 1  # where a token goes: after the mask that is inserted before it
    target = torch.where(movable, last, order)
    target = torch.where(movable & ((count == 0) | (last >= stop)), width, target)
    source = torch.full((len(movable), width + 1), -1, device=device)
    return source.scatter_(1, target, order)[:, :-1]


@register(
    "levenshtein",
    paper="https://huggingface.co/inclusionAI/LLaDA2.2-flash",
    checked="reference:samplers.masked.test_levenshtein.naive",
)
class Levenshtein(Revise):
    provides = frozenset({Trait.MOVES_TOKENS})
    default_select = "threshold:tau=0.5"

    tau: Annotated[float, "an edit needs a new token of more than this probability"] = 0.0
    post: Annotated[int, "most steps on a block after its original masks are filled"] = 16
    delete: Annotated[int | None, "id of DELETE; by default the checkpoint's delete_token_id"] = None
    split: Annotated[int | None, "id of SPLIT; by default the checkpoint's split_token_id"] = None

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("post", least=1)
        self.require("delete", "split", least=0)
        if self.delete is not None and self.delete == self.split:
            raise SpecError(f"levenshtein: delete and split are both {self.delete}", hint="give two different ids")

    def fit(self, model: LanguageModel) -> Levenshtein:
        delete, split = (
            model.config.get(f"{name}_token_id") if value is None else value
            for name, value in (("delete", self.delete), ("split", self.split))
        )
        for name, value in (("delete", delete), ("split", split)):
            if not isinstance(value, int) or not 0 <= value < model.vocab_size:
                why = "its config names none" if value is None else f"id {value} is none of its {model.vocab_size} ids"
                raise SpecError(
                    f"levenshtein: {model.name} has no {name} token: {why}",
                    hint=f"use a model that was trained to edit, such as LLaDA2.2, or give the id: {name}=ID",
                )
        return self if (delete, split) == (self.delete, self.split) else replace(self, delete=delete, split=split)

    def start(self, canvas: Canvas) -> EditHistory:
        return EditHistory.empty(canvas, canvas.window.shape[1] + self.post + 1)

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: EditHistory) -> Revision:
        distribution, window = proposal.evidence.distribution, canvas.window
        tokens, masks, ours = canvas.tokens.gather(1, window), canvas.open.gather(1, window), canvas.committed
        state.enter(canvas, masks)
        own = (state.own & masks).sum(1, keepdim=True)  # [B, 1] of the block's own masks
        last = state.count(own[:, 0] == 0, self.post)[:, None]  # [B, 1] bool
        needed = 1 + masks.sum(1, keepdim=True) - own
        enough = chosen.sum(1, keepdim=True) >= needed
        chosen = torch.where(last | (own == 0), masks, torch.where(enough, chosen, top(proposal.score, needed) & masks))
        best, surest = distribution.greedy
        ids = torch.where(masks, proposal.tokens, best)
        writes = chosen | (ours & (best != tokens) & (surest > self.tau))
        goes_on = writes.any(1, keepdim=True) & ~last
        forbidden = (self._delete, self._split)
        marks = torch.isin(ids, upload(torch.tensor(forbidden), ids.device))
        ids = without(forbidden, writes & last & marks, ids, distribution)
        ids = state.untried(tokens, writes & goes_on, distribution.probability(ids), ids, distribution)
        state.record(tokens, writes, ids)
        deleted, split = writes & (ids == self._delete), writes & (ids == self._split)
        plain = writes & ~deleted & ~split
        scores = torch.where(masks & (ids == proposal.tokens), proposal.score, distribution.probability(ids))
        source = edit_sources(ours | masks, deleted, split)
        state.move(source)
        return Revision(
            reopen=masks & ~plain,  # what the select chose there is not written
            rewrite=Update(plain & ours, ids, scores),
            hold=goes_on[:, 0],
            commit=Update(plain & masks, ids, scores),
            source=source,
        )

    @property
    def _delete(self) -> int:
        assert self.delete is not None, "it was fitted to a model"
        return self.delete

    @property
    def _split(self) -> int:
        assert self.split is not None, "it was fitted to a model"
        return self.split
