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
from typing import ClassVar

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError, SpecError

from ...registry import register
from ..contracts import ContinuousContext, RoundResult
from ._cspd_exact import exact_round
from ._cspd_published import published_round
from ._cspd_settings import CSpDSettings
from ._drafting import Drafter


@register(
    "cspd",
    stage="vectors",
    paper="arXiv:2411.11925",
    checked="golden/acceptance reference:samplers.continuous.test_cspd_published.plainly",
)
@dataclass(frozen=True)
class CSpD(CSpDSettings):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (64, 32, 16, 8)}  # as mar's, which it is beside

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
        if model.backbone.next_token and self.mode != "exact":
            raise SpecError(
                f"cspd: mode={self.mode} tests drafts without those before them, and {model.name} needs all of these",
                hint="use mode=exact",
            )
        _check_densities(model)

    def start(self, context: ContinuousContext) -> Drafter:
        if context.request.temperature <= 0:
            raise SpecError(
                f"cspd tests densities, and at temperature {context.request.temperature} there are none",
                hint="use a temperature above 0, or mar",
            )
        if context.request.draft_model is None:
            raise ModelError("cspd: the request has no draft model", "load it and hand it in as its draft_model")
        _check_densities(context.request.draft_model)
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


def _check_densities(model: ContinuousModel) -> None:
    if not model.head.stochastic:
        raise SpecError(
            f"cspd tests densities, and the head of {model.name} has none: its steps add no noise",
            hint="load the checkpoint with noise of its flow, or use sequential or seeded_jacobi",
        )
