"""A large model samples the first scales of an image, which determine its content, and a small one all the others.

Collaborative Decoding Makes Visual Auto-Regressive Modeling Efficient, https://arxiv.org/abs/2411.17787

    scales 0 .. N-1 from the loaded model, N .. S-1 from the refiner;  nothing is tested, and nothing is taken back

The refiner's first forward takes the scales 0 to N in one block-causal call, which fills its keys and values; only
scale N has logits. Guidance is that of `sequential`, by whichever model has the scale.

Deviates from the authors' code: any number of steps, 0 and all included, of any scales; no draws are thrown away to
move a random stream; one stream of a row serves both models.
Exact: no: the codes from scale N on follow the refiner's distribution. With all steps it is `sequential` of the loaded
model, with none that of the refiner.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pardec.models.errors import ModelError, SpecError
from pardec.models.scales.contracts import ScaleModel, check_pair

from ...registry import register
from ...spec import ModelName
from ..contracts import RoundResult, ScaleContext
from ..forward import ScaleForward
from .map_decoding import MapMethod, Order


class Collaboration:
    """The two models for a request: the loaded one until its last scale, then the refiner."""

    def __init__(self, context: ScaleContext, refiner: ScaleModel, steps: int) -> None:
        self.refiner, self.steps, self.draft = refiner, steps, steps == 0
        self.forward = ScaleForward(context, refiner, "refiner") if self.draft else ScaleForward(context, context.model)

    def ready(self, context: ScaleContext) -> ScaleForward:
        """The model of the next scale; the other one's keys and values are freed."""
        if not self.draft and context.maps.scale == self.steps:
            self.forward, self.draft = ScaleForward(context, self.refiner, "refiner"), True
        return self.forward


@register("code", checked="golden/code_var")
class CoDe(MapMethod):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (-1, -2, -3, -4)}

    refiner: Annotated[ModelName | None, "the small model: embedded name, folder, file or hub id"] = None
    steps: Annotated[int | None, "scales that the loaded model samples (N); -2: all but two; none: four fifths"] = None
    temperatures: Annotated[
        str | None, "factor of the temperature per scale: 1.1x7/1, as published, is 1.1 at the first seven, then 1"
    ] = None
    top_ks: Annotated[str | None, "top-k per scale, as 900x7/600; 0 keeps all; none: the request's"] = None
    cfgs: Annotated[str | None, "factor of cfg per scale, as 1x7/0.75"] = None
    order: Annotated[Order, "apply first: filters, as published, or temperature, as other samplers do"] = "filters"

    @property
    def needed_model(self) -> str | None:
        return self.refiner

    def check_model(self, model: ScaleModel) -> None:
        super().check_model(model)
        if not self.refiner:
            raise SpecError(
                "code: refiner is missing; it names the model that samples the last scales",
                hint="write code:refiner=... with an embedded name, a folder, a file or a hub id",
            )
        if self.steps is not None and abs(self.steps) > len(model.scales):
            raise SpecError(
                f"code: steps={self.steps} does not fit the {len(model.scales)} scales of {model.name}",
                hint=f"steps is 0 to {len(model.scales)}, the scales of the loaded model; -1 is all but one",
            )

    def start(self, context: ScaleContext) -> Collaboration:
        refiner = context.request.refiner
        if refiner is None:
            raise ModelError("code: the request has no refiner", "load it and pass it as refiner of the request")
        refiner = refiner.of_size(context.request.size)
        check_pair(refiner, context.model)
        count = len(context.model.scales)
        steps = count * 4 // 5 if self.steps is None else self.steps
        return Collaboration(context, refiner, steps if steps >= 0 else count + steps)

    def round(self, context: ScaleContext, state: Collaboration) -> RoundResult:
        logits, fed = state.ready(context).next_logits(self.guidance(context))
        self.draw(context, logits)
        return RoundResult(fed, draft=state.draft)
