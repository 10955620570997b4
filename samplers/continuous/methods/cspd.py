"""Drafts groups of vectors with a smaller model and tests them by ratios of densities along denoising paths.

Continuous Speculative Decoding for Autoregressive Image Generation, https://arxiv.org/abs/2411.11925

    reference: each of k steps' tokens x = mu_q,1 stands if u < ratio(x) (`kernels.ratios`), target and draft with the
               same noise; the target sees what it knew at its last test. One that falls is replaced in place
    exact:     log u < log p(path) - log q(path), the path being the draft's; one that falls is drawn from
               max(0, p - q) over paths, and groups behind it are dropped and drafted anew

Deviates from the authors' code: in `mode=reference` a rejected token takes its first proposal that is accepted, and
after 100 tries the target's own token. `reference=true` brings back theirs: all tokens of all rows are tried until each
had one, the last counts, and zeros remain, so that a row depends on its batch. Rounds count from the schedule's start.
`mode=exact` is not theirs; it asks the target for each group from what is before it, drafts included, in one call.
Exact: no: the published ratio is not that of the tokens' laws, and drafts behind a replaced one stay. What it adds is
not bounded. With `mode=exact` the law is that of `mar` with the same steps, last, guidance and head.
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
from ..contracts import Easel, Round
from ._ahead import Ahead
from ._cspd_exact import exact_round
from ._cspd_published import published_round
from ._drafting import Drafter


@register("cspd", stage="vectors", paper="arXiv:2411.11925", checked="golden/acceptance reference")
@dataclass(frozen=True)
class CSpD(Ahead):
    draft: Annotated[ModelName | None, "of the drafting checkpoint: embedded name, folder or hub id"] = None
    k: Annotated[int, "steps that the draft takes before the target tests them"] = 8
    mode: Annotated[Literal["reference", "exact"], "as published, or keeping the target's law"] = "reference"
    steps: Annotated[int, "of the schedule; more than there are tokens are not taken"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last | None, "what a token is: map, x1 or noise; none: map, or x1 with mode=exact"] = None
    head: Annotated[int | None, "transitions of both heads; none takes the model's"] = None
    prefill: Annotated[float, "share of the steps that the target takes alone, the first ones"] = 0.15
    tau: Annotated[float, "mode=reference: how much wider the last transition's kernels are made for the test"] = 42.0
    derived: Annotated[bool, "mode=reference: the other transitions count as derived, and not as published"] = False
    reference: Annotated[bool, "mode=reference: the published tries for what is rejected, zeros included"] = False
    slack: Annotated[float, "mode=exact: factor of the ratio; above 1 accepts more than keeps the law"] = 1.0

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
        foreign = {"exact": ("tau", "derived", "reference"), "reference": ("slack",)}[self.mode]
        for name in foreign:
            if getattr(self, name) != getattr(type(self), name):
                raise SpecError(f"cspd: {name}={getattr(self, name)} is no part of mode={self.mode}")
        if self.mode == "reference" and self.last != "map":
            raise SpecError(
                f"cspd: mode=reference tests the mean of the last transition, and last={self.last} has others",
                hint="leave last out, or use mode=exact",
            )
        if self.mode == "exact" and self.last == "map" and self.k > 1:
            raise SpecError(
                f"cspd: last=map with k={self.k} does not keep the law: what is drafted next has seen the draft's "
                "last mean, and the target's is another",
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
                hint="write cspd:draft=... with an embedded name, a folder or a hub id of the target's tokens",
            )

    def start(self, easel: Easel) -> Drafter:
        if easel.request.temperature <= 0:
            raise SpecError(
                f"cspd tests densities, and at temperature {easel.request.temperature} there are none",
                hint="use a temperature above 0, or mar",
            )
        if easel.request.draft_model is None:
            raise ModelError("cspd: the request has no draft model", "load it and hand it in as its draft_model")
        return Drafter(easel.request.draft_model, easel)

    def round(self, easel: Easel, state: Drafter) -> Round:
        # All rows are at the same step as long as nothing was drafted.
        if int(self.groups(easel).step(easel.painting.done).min()) < self.alone(easel):
            self.draw(easel)
            return Round()
        return (exact_round if self.mode == "exact" else published_round)(self, easel, state)

    def alone(self, easel: Easel) -> int:
        """Steps that the target takes alone; the authors take the one at the border too."""
        share = len(self.groups(easel)) * self.prefill
        return math.floor(share) + 1 if self.mode == "reference" else math.ceil(share)
