"""Commits all open positions at once, as soon as the answer is far enough ahead of its alternatives.

Diffusion Language Models Know the Answer Before Decoding (Prophet), https://arxiv.org/abs/2508.19982

    gap  = of (largest - second largest raw logit) over the region: the mean if it is the answer, else the least
    fill = gap >= early, mid or late, for a progress below 0.33, below 0.67, or from there on

Checked after every forward and before its commit, on the logits before any other stage changes them; a row that fills
commits the argmax at each of its open positions and is done. The region is the answer, `length` positions from `start`
on, or every open position of the block or of the row. Rows whose forward did not predict everything open wait for one
that does: with a cache of windows that is the next refresh. In a block-causal family a fill ends at the active block,
and nothing of the region counts after it.
Progress by steps counts every step of the schedule, also those that commit nothing; these are checked too, with the
forward that follows them, whose canvas is the same.

Deviates from the authors' code: regions other than the answer, and progress by committed tokens, are pardec's own; so
is the least gap, since the mean over a whole row is dominated by its end tokens, which are sure long before the answer
is (`gap=mean` uses it all the same). Of the region only open positions count, where the published loop averages decided
ones as well (`decided=true`).
Exact: no.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Finish, Predictions, Proposal, Request
from ..query_plan import visible_open

_BOUNDS = (0.33, 0.67)  # progress at which early becomes mid, and mid becomes late


@register("prophet", checked="golden/llada reference:reference.naive_prophet.prophet")
class Prophet(Finish):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"early": (7.5, 10.0, 15.0)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"early": (15.0, 10.0, 7.5, 5.0, 2.5)}

    region: Annotated[
        Literal["answer", "block", "all"] | None,
        "the positions whose gap is tested; none: answer if start is set, else all",
    ] = None
    start: Annotated[
        int | None, "first position of the answer, counted from the prompt's end; below 0: never commit early"
    ] = None
    length: Annotated[int, "positions of the answer"] = 5
    early: Annotated[float, "gap in logits that suffices in the first third"] = 7.5
    mid: Annotated[float, "gap that suffices in the second third"] = 5.0
    late: Annotated[float, "gap that suffices in the last third"] = 2.5
    progress: Annotated[
        Literal["steps", "committed"] | None, "share of the schedule's steps, or of the tokens committed"
    ] = None
    decided: Annotated[bool, "also count positions of the answer that are committed already, as published"] = False
    gap: Annotated[
        Literal["mean", "least"] | None, "mean or least gap of the region; none: mean for the answer, else least"
    ] = None

    def __post_init__(self) -> None:
        self.require("length", least=1)
        for name in ("early", "mid", "late"):
            if math.isnan(getattr(self, name)):
                raise SpecError(
                    f"prophet: {name} must be a number, the gap in logits, got nan",
                    hint=f"{name}=inf never commits early",
                )
        if self.region == "answer" and self.start is None:
            raise SpecError(
                "prophet: region=answer needs the answer's start",
                hint="prophet:start=200 begins 200 tokens after the prompt; region=all uses all open positions",
            )

    @property
    def requires(self) -> Reasons:
        steps = "{me}: progress=steps needs a select that knows its number of steps, such as fixed"
        asked = {Trait.COUNTS_STEPS: Why(steps, "use progress=committed, which works with every select")}
        return asked if self.progress == "steps" else {}

    def admit(self, request: Request, sampler: Any) -> None:
        for row, (canvas, prompt) in enumerate(zip(request.canvases, request.prompts, strict=True)):
            behind = len(canvas) - prompt
            if self._answer and self.start is not None and self.start >= behind:
                raise SpecError(
                    f"prophet: start={self.start} lies after the end of row {row}, which generates {behind} tokens",
                    hint="generate more tokens, or leave start out to use all open positions",
                )

    def fill(self, predictions: Predictions, proposal: Proposal, canvas: Canvas) -> Tensor:
        every = np.ones(len(canvas), dtype=bool)
        opened = visible_open(canvas, every)[1]
        region, counted = self._region(canvas, opened)
        ready = (predictions.has(opened) | (opened == canvas.length)).all(1)
        counted &= predictions.has(region)
        confidence = predictions.at(region).confidence
        gaps, count = confidence.top1 - confidence.top2, counted.sum(1)
        least = upload(self._least(canvas), gaps.device)
        if self.gap == "mean" or (self.gap is None and self._answer):
            reached = gaps.masked_fill(~counted, 0).sum(1) >= least * count
        else:
            reached = (gaps >= least[:, None]).logical_or(~counted).all(1)
        return ready & (count > 0) & reached

    @property
    def _answer(self) -> bool:
        """Whether the region is an answer with a known start."""
        return self.start is not None and self.region in (None, "answer")

    def _region(self, canvas: Canvas, opened: Tensor) -> tuple[Tensor, Tensor]:
        """The positions [B, K] of the answer region, and which of them count."""
        if self.region == "block":
            return canvas.window, canvas.eligible.clone()
        if self.region == "all" or self.start is None:
            return opened, opened < canvas.length
        first = canvas.prompt + self.start
        positions = first[:, None] + np.arange(self.length)
        inside = (positions < canvas.total[:, None]) & (self.start >= 0)
        positions = np.where(inside, positions, canvas.length)
        if not self.decided:
            inside = np.take_along_axis(canvas.open_host, positions, 1)
        device = canvas.tokens.device
        return upload(positions, device), upload(inside, device)

    def _least(self, canvas: Canvas) -> np.ndarray:
        """[B] float32: the least gap that suffices at this step."""
        gaps, stage = np.array([self.early, self.mid, self.late], np.float32), np.arange(3)
        if self.progress == "steps" or (self.progress is None and bool((canvas.total_steps > 0).all())):
            steps = np.maximum(canvas.total_steps, 1)
            passed = canvas.clocks[:, -1] + 1 if canvas.clocks.shape[1] else np.zeros_like(canvas.step)
            first, now = (passed + 1) / steps, (canvas.step + 1) / steps  # idle steps are checked here too
        else:
            first = now = 1 - canvas.open_host.sum(1) / np.maximum(canvas.num_masked, 1)
        early, late = (np.searchsorted(_BOUNDS, reached, "right")[:, None] for reached in (first, now))
        least: np.ndarray = np.where((early <= stage) & (stage <= late), gaps, np.inf).min(1)
        return least.astype(np.float32)
