"""Commits everything that is open at once, as soon as the answer is far enough ahead of its alternatives.

Diffusion Language Models Know the Answer Before Decoding (Prophet), https://arxiv.org/abs/2508.19982

    gap  = mean over the region of (largest - second largest raw logit)
    fill = gap >= early, mid or late, for a progress below 0.33, below 0.67, or from there on

Checked after every forward and before its commit, on the logits before any other stage changes them; a row that fills
commits the argmax at each of its open positions and is done. The region is the answer, `length` positions from `start`
on, or every open position of the block or of the row. Rows whose forward did not predict everything open wait for one
that does: with a cache of windows that is the next refresh. In a block-causal family a fill ends at the active block.

Deviates from the authors' code: regions other than the answer, and progress by committed tokens, are pardec's own; of
the region only open positions count, where the published loop averages decided ones as well (`decided=true`).
Exact: no.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.contracts import Canvas, Outlook, Planned, Proposal, Request, Sampler
from pardec.samplers.registry import Policy, register


@register("prophet", stage="finish", paper="arXiv:2508.19982")
@dataclass(frozen=True)
class Prophet(Policy):
    tried: ClassVar[dict[str, tuple[object, ...]]] = {"early": (7.5, 10.0, 15.0)}  # by `pardec tune`

    region: Literal["answer", "block", "all"] | None = None  # where the gap is taken; none: answer if it has a start
    start: int | None = None  # first position of the answer, counted from the prompt's end; below 0 it never fills
    length: int = 5  # positions of the answer
    early: float = 7.5  # gap in logits that suffices below a third of the way
    mid: float = 5.0  # below two thirds
    late: float = 2.5  # from there on
    progress: Literal["steps", "committed"] | None = None  # share of the schedule's steps, or of the tokens committed
    decided: bool = False  # positions of the answer that are committed already count, as published

    def __post_init__(self) -> None:
        if self.length < 1:
            raise SpecError(f"prophet: length must be at least 1, got {self.length}")
        for name in ("early", "mid", "late"):
            if math.isnan(getattr(self, name)):
                raise SpecError(f"prophet: {name} is a gap in logits, got nan", hint=f"{name}=inf never fills")
        if self.region == "answer" and self.start is None:
            raise SpecError(
                "prophet: region=answer needs the answer's start",
                hint="prophet:start=200 begins 200 tokens after the prompt; region=all takes whatever is open",
            )

    def check(self, sampler: Sampler) -> None:
        if self.progress == "steps" and not isinstance(sampler.select, Planned):
            raise SpecError(
                "prophet: progress=steps needs a select that knows its number of steps, such as fixed",
                hint="progress=committed goes with every select",
            )

    def fill(self, outlook: Outlook, proposal: Proposal, canvas: Canvas) -> np.ndarray:
        every = np.ones(len(canvas), dtype=bool)
        opened = canvas.ahead(every)[1]
        places, counted = self._region(canvas, opened)
        ready = (outlook.has(opened) | (opened == canvas.length)).all(1)
        counted &= outlook.has(places)
        found = outlook.at(places).confidence
        gaps = (found.top1 - found.top2).masked_fill(~counted, 0).sum(1)
        count = counted.sum(1)
        least = torch.from_numpy(self._least(canvas)).to(gaps.device)
        fills: np.ndarray = (ready & (count > 0) & (gaps >= least * count)).cpu().numpy()
        return fills

    def done(self, canvas: Canvas, request: Request) -> np.ndarray:
        """Nothing is left open where it filled, so that no row has to be stopped."""
        return np.zeros(len(canvas), dtype=bool)

    def _region(self, canvas: Canvas, opened: Tensor) -> tuple[Tensor, Tensor]:
        """Positions [B, K] of the region, and which of them count."""
        if self.region == "block":
            return canvas.window, canvas.eligible.clone()
        if self.region == "all" or self.start is None:
            return opened, opened < canvas.length
        first = canvas.prompt + self.start
        places = first[:, None] + np.arange(self.length)
        inside = (places < canvas.total[:, None]) & (self.start >= 0)
        places = np.where(inside, places, canvas.length)
        if not self.decided:
            inside = np.take_along_axis(canvas.open_host, places, 1)
        device = canvas.tokens.device
        return torch.from_numpy(places).to(device), torch.from_numpy(inside).to(device)

    def _least(self, canvas: Canvas) -> np.ndarray:
        """The gap that suffices now, [B] float32."""
        steps = self.progress == "steps" or (self.progress is None and bool((canvas.planned > 0).all()))
        if steps:
            reached = (canvas.nfe + 1) / np.maximum(canvas.planned, 1)
        else:
            reached = 1 - canvas.open_host.sum(1) / np.maximum(canvas.asked, 1)
        least: np.ndarray = np.select([reached < 0.33, reached < 0.67], [self.early, self.mid], self.late)
        return least.astype(np.float32)
