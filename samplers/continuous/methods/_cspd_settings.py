"""The parameters of `cspd`, which both of its rounds read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...spec import ModelName
from ._ahead import LookaheadMethod


@dataclass(frozen=True)
class CSpDSettings(LookaheadMethod):
    """Checked when they are set."""

    draft: Annotated[ModelName | None, "of the drafting checkpoint: embedded name, folder or hub id"] = None
    k: Annotated[int, "steps that the draft takes before the target tests them"] = 8
    mode: Annotated[Literal["reference", "exact"], "as published, or keeping the target's distribution"] = "reference"
    steps: Annotated[int, "of the schedule, at most one a token; models that predict one by one take all"] = 64
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
        self.require("k", least=1)
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
