"""Has a smaller model draft groups of vectors where that gains seconds, and samples group by group where it does not.

BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms, https://arxiv.org/abs/2505.15141

    draft iff  groups / seconds of rounds with drafts > groups / seconds of rounds without,  measured for the batch

The clock decides this for all rows at once, from the first rounds of a request on, and remembers both rates for later
requests of the same model, spec and number of rows. A round with drafts is one of `cspd:mode=exact` without `prefill`,
a round without is one of `mar`. Nothing is drafted without a `draft`, nor at temperature 0, where there are no
densities to test drafts with.

Deviates from the paper: no bounds of confidence; rates fade, and the way not taken is tried again now and then.
Exact: distribution: that of `mar` with the same steps, last, guidance and head, whichever way the rounds go. Which
images a seed gives depends on the clock; without a `draft` they are those of `mar`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError

from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...pace import RoundTimer, clock_on
from ...registry import register
from ...spec import ModelName
from ..contracts import ContinuousContext, RoundResult
from .cspd import CSpD, Drafter
from .groups import GroupMethod


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The state of a request in which a smaller model may draft."""

    drafter: Drafter
    timer: RoundTimer


@register("auto", exact="distribution", checked="hand")
class Auto(GroupMethod):
    _exact: ClassVar[Any]  # `cspd` of the same settings; None without `draft`

    draft: Annotated[ModelName | None, "the draft model: embedded name, folder or hub id; none: nothing drafts"] = None
    k: Annotated[int, "groups that the draft model samples before the target tests them"] = 8
    steps: Annotated[int, "steps of the schedule, at most one per token; next-token models take one per token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[
        Last | None, "the path's last transition: map, noise or x1 (see mar); none: map, or x1 with a draft"
    ] = None
    head: Annotated[int | None, "denoising transitions of both heads; none: the model's number"] = None

    def __post_init__(self) -> None:
        if self.last is None:
            object.__setattr__(self, "last", "x1" if self.draft else "map")
        super().__post_init__()
        self.require("k", least=1)
        if self.draft and self.last == "map" and self.k > 1:
            raise SpecError(
                f"auto: last=map with k={self.k} is not exact: later drafts depend on the draft's last mean, and the "
                "target's differs",
                hint="use last=x1, last=noise or k=1",
            )
        shared = {name: getattr(self, name) for name in ("draft", "k", "steps", "guidance", "last", "head")}
        exact = CSpD(**shared, mode="exact", prefill=0.0) if self.draft else None
        object.__setattr__(self, "_exact", exact)  # no field: it follows from the spec

    @property
    def needed_model(self) -> str | None:
        return self.draft

    def check_model(self, model: ContinuousModel) -> None:
        if self._exact is None:
            super().check_model(model)
        else:
            self._exact.check_model(model)

    def start(self, context: ContinuousContext) -> Pair | None:
        request = context.request
        if self._exact is None or request.temperature <= 0:
            return None
        drafter = self._exact.start(context)
        clock = clock_on((context.model.device.type,))
        network = context.model.backbone
        return Pair(drafter, RoundTimer(network, clock, self, request.cfg is not None, request.size))

    def round(self, context: ContinuousContext, state: Pair | None) -> RoundResult:
        if state is None:
            self.sample_group(context)
            return RoundResult()
        images, schedule = context.images, self.schedule(context)
        before, result = schedule.step(images.count), RoundResult()
        if state.timer.begin(len(images)):
            result = self._exact.round(context, state.drafter)
        else:
            self.sample_group(context)
        state.timer.end(schedule.step(images.count) - before)
        return result
