"""Grows a row until the model predicts its end within it, so that `max_new_tokens` is no more than a bound.

DAEDAL: Beyond Fixed: Training-Free Variable-Length Denoising for Diffusion Large Language Models,
https://arxiv.org/abs/2508.00819

    e = sum of the probabilities of end tokens that are the likeliest at one of the last 32 positions / 32
    start:  a row begins with `start` masks; while e < enough, `step` masks are added at its end and none committed;
            then `spare` more
    after:  where e < sure, of the open positions of the block that this step does not commit the least certain is
            replaced by `step` masks, if its likeliest token has a probability < unsure; what is after it moves by
            step - 1

A row never exceeds `max_new_tokens`, and positions that it does not use stay uncommitted. It ends at its last position,
or where `eos` ends it. Rows with given tokens after the prompt begin at full length, and do not grow.
Moved tokens make every stored K/V wrong, so that only forwards without a cache are possible.
Deviates from the authors' code, which adds the spare masks before the first commit, not with it, and pads the shorter
rows of a batch with end tokens. How it bounds the last 32 positions in a shorter row is not known to us: here, by the
prompt.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import CAUSAL_KINDS, Canvas, Finish, Growth, Predictions, Proposal, Request

_TAIL = 32  # positions at the end of a row that are searched for end tokens


@register("grow", checked="reference:reference.naive_grow.decode")
class Grow(Finish):
    provides = frozenset({Trait.MOVES_TOKENS, Trait.READS_WHOLE_ROW})
    conflicts: ClassVar[Reasons] = {
        Trait.STORES_KV: Why("{me} moves tokens, and {does}", "write @none"),
        Trait.CUTS_ROWS: Why("{me} lengthens rows and {other} shortens them", "keep one"),
        Trait.LATE_END: Why("{me} looks for the end of the row, and {does}", "leave {me} out"),
        **dict.fromkeys(CAUSAL_KINDS, Why("{me} looks at the end of the row, and {does}", "leave {me} out")),
    }

    start: Annotated[int, "masks that a row begins with"] = 64
    step: Annotated[int, "masks added to the row, or put in place of one mask"] = 8
    spare: Annotated[int, "masks added once the row is long enough"] = 16
    enough: Annotated[float, "mean probability e of end tokens at the row's end at which no more masks are added"] = 0.5
    sure: Annotated[float, "value of e at which no more masks are replaced"] = 0.9
    unsure: Annotated[float, "probability below which a mask may be replaced"] = 0.1

    def __post_init__(self) -> None:
        self.require("start", "step", least=1)
        self.require("spare", least=0)
        self.require("enough", "sure", "unsure", least=0, most=1)

    @property
    def begins_with(self) -> int:
        return self.start

    def grow(
        self, predictions: Predictions, chosen: torch.Tensor, proposal: Proposal, canvas: Canvas, request: Request
    ) -> Growth:
        device = chosen.device
        tail = canvas.total[:, None] - np.arange(1, _TAIL + 1)
        columns = upload(np.where(tail >= canvas.prompt[:, None], tail, canvas.length), device)
        ids, probability = predictions.at(columns).greedy
        ends = torch.isin(ids, upload(torch.tensor(request.stop_ids), device)) & (columns < canvas.length)
        e = torch.where(ends, probability, 0).sum(1) / _TAIL
        room = canvas.planned - canvas.total
        begins = upload(~(~canvas.open_host & ~canvas.given_host).any(1), device)  # nothing is committed yet
        bound = upload(room, device)
        wait = begins & (e < self.enough) & (bound > 0)
        candidate = proposal.evidence.distribution.greedy[1].masked_fill(chosen | ~proposal.eligible, torch.inf)
        least, at = candidate.min(1)
        replace = ~begins & (e < self.sure) & (least < self.unsure)
        where = torch.where(replace, proposal.evidence.positions.gather(1, at[:, None])[:, 0], 0)
        count = torch.where(wait, self.step, torch.where(begins, self.spare, (self.step - 1) * replace))
        last = upload(canvas.total - 1, device)
        return Growth(torch.where(begins, last, where), torch.minimum(count, bound), wait)
