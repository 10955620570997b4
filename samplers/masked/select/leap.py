"""Commits the confident run at the start of a window that slides with the first open position.

DC-Leap, https://arxiv.org/abs/2607.20467
Longest Stable Prefix, https://arxiv.org/abs/2603.05454 (border=margin)

    commit the open positions from the first one s on, within [s, s + window), up to the first score < tau; at least s

border=margin, where n positions are open and d_i = z1 - z2, the gap of the two largest logits, has prefix minima m_i:

    commit i = 1 .. r,  r <= n / 2 the last with m_r >= m_(n/4);  cut after the last delimiter of the last `back` tokens

The window is counted in positions, over one block: `block_length` is the whole answer. `leap+provisional` is the method
of the paper, whose window is half the answer. The run is not empty: the paper's rule for that case is not known to us.
Nor does the second paper's summary fix which run in [n/4, n/2] is taken; this one has the highest threshold.
Exact: no.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ..contracts import Canvas, Proposal, Select

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_DELIMITERS = frozenset((".", "!", "?", ";", "\n", "\n\n", "}", "。"))


@register("leap", checked="reference:samplers.masked.test_leap.run reference:samplers.masked.test_leap.border")
class Leap(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.7, 0.9, 0.5)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)}

    tau: Annotated[float, "least score of a committed candidate, a probability"] = 0.7
    window: Annotated[int | None, "positions in the window, from the first open one on; none: half of the answer"] = (
        None
    )
    border: Annotated[
        Literal["tau", "margin"], "end of the run: the first score below tau, or by the margins of the logits"
    ] = "tau"
    back: Annotated[int, "with border=margin: most tokens cut to end at a delimiter; 0: none"] = 4
    delimiters: Annotated[
        str | None, "with border=margin: token ids joined by -, as 198-13; none: ends of sentences and lines"
    ] = None

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("window", least=1)
        self.require("back", least=0)
        if self.delimiters is not None and not all(part.isdecimal() for part in self.delimiters.split("-")):
            raise SpecError(
                f"leap: delimiters must be token ids joined by -, got {self.delimiters!r}", "delimiters=198-13"
            )

    def fit(self, model: LanguageModel) -> Leap:
        if self.border == "tau" or not self.back or self.delimiters is not None:
            return self
        tokenizer = model.tokenizer
        ids = [] if tokenizer is None else [i for i in range(len(tokenizer)) if tokenizer.decode([i]) in _DELIMITERS]
        if not ids:
            raise SpecError(
                f"leap: {model.name} has no token that ends a sentence or a line",
                "give the ids of its delimiters, delimiters=198-13, or write back=0",
            )
        return replace(self, delimiters="-".join(map(str, ids)))

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        open_ = proposal.eligible
        column, first = torch.arange(open_.shape[1], device=open_.device), open_.long().argmax(1)[:, None]
        generated = upload(canvas.total - canvas.prompt, open_.device)[:, None]
        near = column < first + (((generated + 1) // 2) if self.window is None else self.window)
        run = self._margins(proposal) if self.border == "margin" else self._confident(proposal)
        return open_ & ((run & near) | (column == first))

    def _confident(self, proposal: Proposal) -> Tensor:
        """[B, W] bool: positions before the first open one below `tau`."""
        return ((proposal.score >= self.tau) | ~proposal.eligible).cumprod(1).bool()

    def _margins(self, proposal: Proposal) -> Tensor:
        """[B, W] bool: the first open positions, as many as their margins say."""
        open_, confidence = proposal.eligible, proposal.evidence.distribution.confidence
        margin = (confidence.top1 - confidence.top2).masked_fill(~open_, torch.inf)
        lowest, rank = margin.cummin(1).values, open_.cumsum(1)  # ranks from 1
        count = rank[:, -1:]
        least, most = (count + 3) // 4, (count // 2).clamp(min=1)
        at = ((rank == least) & open_).long().argmax(1, keepdim=True)
        run = open_ & (rank <= most) & (lowest >= lowest.gather(1, at))
        if not self.back or self.delimiters is None:
            return run
        ids = upload(torch.tensor([int(part) for part in self.delimiters.split("-")]), open_.device)
        length = run.sum(1, keepdim=True)
        ends = run & torch.isin(proposal.tokens, ids) & (rank >= length - self.back)
        last = torch.where(ends, rank, 0).amax(1, keepdim=True)
        return run & ((rank <= last) | (last == 0))
