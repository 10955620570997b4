"""Overwrites, deletes and inserts: tokens of the active block may move within it.

LLaDA2.2, https://huggingface.co/inclusionAI/LLaDA2.2-flash

    needs  = 1 + inserted masks     (all that are open where the block's own masks are gone)
    write  = the select's, or the `needs` surest masks if they are more;  {j committed : argmax_j != x_j and p_j > tau}
    a write of DELETE takes its position out;  of SPLIT puts a mask before the token that stands there

at every step; the block keeps its length: masks fill it up at its end, and what falls over its end is lost. It ends
when a step writes nothing, or with the last of `post` steps that began with none of its own masks left, and after so
many and one more than it generates positions in any case; that last step writes neither DELETE nor SPLIT and leaves no
mask. Where a block is what it was before, the least sure change takes the best token that was not yet written there.

Every token keeps the number of its first position, and every inserted mask gets one of its own: `Trace.serial`. Tokens
that the request gave stay where they are, and others move between them. K/V of what has moved are computed again by
every cache that queries the whole block at every forward; other caches are refused.

Deviates from published engines (SGLang's JointThresholdInDel, whose budgets these are; the released loop gives its
steps back while a mask of its own is left): the mask is no prediction, so that no token becomes a mask again; the bound
on steps counts the positions that the block generates. The experts of a block's pool are the family's affair.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...ops.edits import edit_sources
from ...ops.rank import top
from ...registry import register
from ..contracts import Canvas, Proposal, Revise, Revision, Writing
from ._edit_history import EditHistory, without


@register(
    "levenshtein",
    stage="revise",
    paper="https://huggingface.co/inclusionAI/LLaDA2.2-flash",
    checked="reference:samplers.masked.test_levenshtein.naive",
)
@dataclass(frozen=True)
class Levenshtein(Revise):
    moves: ClassVar[bool] = True
    default_select = "threshold:tau=0.5"

    tau: Annotated[float, "an edit of a committed token needs more probability than this"] = 0.0
    post: Annotated[int, "steps on a block that has none of its own masks left, all in all"] = 16
    delete: Annotated[int | None, "id of DELETE; by default the checkpoint's delete_token_id"] = None
    split: Annotated[int | None, "id of SPLIT; by default the checkpoint's split_token_id"] = None

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("post", least=1)
        self.require("delete", "split", least=0)
        if self.delete is not None and self.delete == self.split:
            raise SpecError(f"levenshtein: delete and split are both {self.delete}", hint="two tokens of their own")

    def fit(self, model: LanguageModel) -> Levenshtein:
        delete, split = (
            model.config.get(f"{name}_token_id") if value is None else value
            for name, value in (("delete", self.delete), ("split", self.split))
        )
        for name, value in (("delete", delete), ("split", split)):
            if not isinstance(value, int) or not 0 <= value < model.vocab_size:
                why = "its config names none" if value is None else f"id {value} of {model.vocab_size}"
                raise SpecError(
                    f"levenshtein: {model.name} has no {name} token: {why}",
                    hint=f"LLaDA2.2 was trained to edit; {name}=ID names a token that this model knows as such",
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
        ids = without(forbidden, writes & last & torch.isin(ids, ids.new_tensor(forbidden)), ids, distribution)
        ids = state.untried(tokens, writes & goes_on, surest, ids, distribution)
        state.record(tokens, writes, ids)
        deleted, split = writes & (ids == self._delete), writes & (ids == self._split)
        plain = writes & ~deleted & ~split
        scores = torch.where(masks & (ids == proposal.tokens), proposal.score, distribution.probability(ids))
        source = edit_sources(ours | masks, deleted, split)
        state.move(source)
        return Revision(
            reopen=masks & ~plain,  # what the select chose there is not written
            rewrite=Writing(plain & ours, ids, scores),
            hold=goes_on[:, 0].cpu().numpy(),
            commit=Writing(plain & masks, ids, scores),
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
