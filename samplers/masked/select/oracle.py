"""Commits all candidates that agree with the finished text of another decode: a lower bound on a select's forwards.

This is a reference, not a method: it reads the answer. Learning to Parallel (Learn2PD), https://arxiv.org/abs/2509.25188,
describes such a greedy-parallel reference as the upper bound that a learned filter aims at.

    commit = {i : candidate_i = y_i}, y the text that the sampler `of` ends with on the same request

Where no candidate agrees, the best-scored position is committed with y's token, so that the text always becomes y. The
forwards of the other decode are not counted.
Exact: greedy, as long as `of` is.
"""

from __future__ import annotations

from typing import Annotated

import torch

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...ops.rank import best
from ...registry import register, resolve
from ..contracts import Canvas, Choice, MaskedSampler, Proposal, Select


@register("oracle", exact="greedy", checked="hand")
class Oracle(Select):
    uses_answer = True

    of: Annotated[str, "spec of the sampler whose text is reproduced; in double quotes if it has : + or @"] = (
        "sequential"
    )

    def __post_init__(self) -> None:
        if "oracle" in self.of:
            raise SpecError(
                "oracle: `of` cannot be an oracle itself", hint="name another sampler: oracle:of=sequential"
            )

    def check(self, sampler: MaskedSampler) -> None:
        resolve(self.of)  # raises here rather than at the first forward

    @property
    def reference_sampler(self) -> str:
        return self.of

    @property
    def exact(self) -> str:
        return "greedy" if self.of == "sequential" else "relaxed"

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Choice:
        finished = proposal.evidence.request.finished
        assert finished is not None, "the loop decodes the reference first"
        rows = upload(canvas.rows, finished.device)
        text = finished[rows].gather(1, canvas.window)
        known = proposal.eligible & (text >= 0)  # -1 after the end token at which `of` stopped
        agrees = known & (proposal.tokens == text)
        surest = best(proposal.score.masked_fill(~known, -torch.inf))
        forced = known & surest & ~agrees.any(1, keepdim=True)
        return Choice(agrees | forced, torch.where(text >= 0, text, proposal.tokens))
