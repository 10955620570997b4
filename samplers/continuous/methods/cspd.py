"""Drafts groups of vectors with a smaller model and accepts them by ratios of densities along denoising paths.

Continuous Speculative Decoding for Autoregressive Image Generation, https://arxiv.org/abs/2411.11925

    reference: each of k steps' tokens x = mu_q,1 is accepted if u < ratio(x) (`ops/density_ratios.py`), target and
               draft with the same noise; the target sees what was known at its last test; a rejected one is replaced
    exact:     log u < log p(path) - log q(path), the path being the draft's; a rejected one is sampled from
               max(0, p - q) over paths, and groups behind it are dropped and drafted anew

Deviates from the authors' code: in `mode=reference` a rejected token takes its first accepted proposal, and after 100
tries the target's own token. `reference=true` restores theirs: all tokens of all rows are tried until each had one, the
last accepted counts, and zeros may remain, so that a row depends on its batch. Rounds count from the schedule's start.
`mode=exact` is not theirs; it runs the target on each group from what precedes it, drafts included, in one call.
Exact: no: the published ratio is not that of the tokens' distributions, and drafts behind a replaced one stay; the
deviation is not bounded. With `mode=exact` the distribution is that of `mar` with the same steps, last, guidance, head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError, SpecError

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from ...spec import ModelName
from ..contracts import ContinuousContext, RoundResult
from ._ahead import LookaheadMethod
from ._cspd_exact import exact_round
from ._cspd_published import published_round
from ._drafting import Drafter


@register("cspd", stage="vectors", paper="arXiv:2411.11925", checked="golden/acceptance reference")
@dataclass(frozen=True)
class CSpD(LookaheadMethod):
    draft: Annotated[ModelName | None, "of the drafting checkpoint: embedded name, folder or hub id"] = None
    k: Annotated[int, "steps that the draft takes before the target tests them"] = 8
    mode: Annotated[Literal["reference", "exact"], "as published, or keeping the target's distribution"] = "reference"
    steps: Annotated[int, "of the schedule, at most one a token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last | None, "the token, at a path's end: map, x1 or noise; none: map, or x1 with mode=exact"] = (
        None
    )
    head: Annotated[int | None, "transitions of both heads; none takes the model's"] = None
    prefill: Annotated[float, "share of the steps that the target takes alone, the first ones"] = 0.15
    tau: Annotated[float, "mode=reference: how much wider the last transition's kernels are made for the test"] = 42.0
    derived: Annotated[bool, "mode=reference: other transitions count as derived, not as published"] = False
    reference: Annotated[bool, "mode=reference: the published tries for what is rejected, zeros included"] = False
    slack: Annotated[float, "mode=exact: factor of the ratio; above 1 it accepts more and is no longer exact"] = 1.0

    def __post_init__(self) -> None:
        if self.last is None:
            object.__setattr__(self, "last", "map" if self.mode == "reference" else "x1")
        super().__post_init__()
        if self.k < 1:
            raise SpecError(f"cspd: k must be at least 1, got {self.k}")
        if not 0 <= self.prefill <= 1:
            raise SpecError(f"cspd: prefill is a share from 0 to 1, got {self.prefill}")
        if not (self.tau > 0 and math.isfinite(self.tau)):
            raise SpecError(f"cspd: tau must be above 0, got {self.tau}")
        if not (self.slack >= 1 and math.isfinite(self.slack)):
            raise SpecError(f"cspd: slack must be at least 1, got {self.slack}")
        other_mode = {"exact": ("tau", "derived", "reference"), "reference": ("slack",)}[self.mode]
        for name in other_mode:
            if getattr(self, name) != getattr(type(self), name):
                raise SpecError(f"cspd: {name}={getattr(self, name)} does not apply to mode={self.mode}")
        if self.mode == "reference" and self.last != "map":
            raise SpecError(
                f"cspd: mode=reference tests the mean of the last transition, and last={self.last} uses another end",
                hint="leave last out, or use mode=exact",
            )
        if self.mode == "exact" and self.last == "map" and self.k > 1:
            raise SpecError(
                f"cspd: last=map with k={self.k} is not exact: later drafts depend on the draft's last mean, "
                "and the target's differs",
                hint="use last=x1, last=noise or k=1",
            )

    @property
    def exact(self) -> str:
        return "distribution" if self.mode == "exact" and self.slack == 1 else "relaxed"

    @property
    def needed_model(self) -> str | None:
        return self.draft

    def check_model(self, model: ContinuousModel) -> None:
        if not self.draft:
            raise SpecError(
                "cspd: draft is not given: the checkpoint that drafts",
                hint="write cspd:draft=... with an embedded name, a folder or a hub id; it needs the target's tokens",
            )

    def start(self, context: ContinuousContext) -> Drafter:
        if context.request.temperature <= 0:
            raise SpecError(
                f"cspd tests densities, and at temperature {context.request.temperature} there are none",
                hint="use a temperature above 0, or mar",
            )
        if context.request.draft_model is None:
            raise ModelError("cspd: the request has no draft model", "load it and hand it in as its draft_model")
        return Drafter(context.request.draft_model, context)

    def round(self, context: ContinuousContext, state: Drafter) -> RoundResult:
        # All rows are at the same step until something is drafted.
        if int(self.schedule(context).step(context.images.count).min()) < self.prefill_steps(context):
            self.sample_group(context)
            return RoundResult()
        return (exact_round if self.mode == "exact" else published_round)(self, context, state)

    def prefill_steps(self, context: ContinuousContext) -> int:
        """Steps that the target takes alone; the authors' code includes the one at the border."""
        share = len(self.schedule(context)) * self.prefill
        return math.floor(share) + 1 if self.mode == "reference" else math.ceil(share)
