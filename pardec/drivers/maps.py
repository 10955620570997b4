"""The driver of image models that predict token maps, coarse to fine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.scales.contracts import ScaleModel
from pardec.samplers import registry
from pardec.samplers.rng import Keyed
from pardec.samplers.scales import loop
from pardec.samplers.scales.contracts import ScaleRequest, ScaleSampler
from pardec.samplers.spec import Part, Spec

from ..requests import draft_models
from ..requests.argument import Takes
from ..requests.call import Call
from ..requests.settings import Settings
from .base import seeds_of
from .images import ImageDriver

if TYPE_CHECKING:
    from pardec.samplers.events import Finished


@dataclass(frozen=True, slots=True)
class MapCall(Call):
    """The request of the scale loop."""

    sampler: ScaleSampler
    request: ScaleRequest

    @property
    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.request, name) for name in ("temperature", "top_k", "top_p", "cfg")}


class MapDriver(ImageDriver):
    """Samples token maps for classes with the scale loop."""

    family = "scales"
    drawn = "token maps"
    of_tokens = "of token maps"
    least_cfg = 0.0
    takes = Takes.MAPS
    compared = "-s sequential -s code:refiner=NAME"
    network: ScaleModel
    network_class = ScaleModel
    loop = staticmethod(loop.decode)

    def prepare(self, prompt: Any, arguments: Mapping[str, Any]) -> MapCall:
        model, settings = self.network, Settings.of(arguments, self.defaults)
        sampler = registry.resolve(settings.sampler, "scales")
        imaging = self.imaging(settings)
        rows, vocab = self.classes(prompt, settings), model.quantizer.vocab
        if settings.top_k is not None and settings.top_k > vocab:
            raise SpecError(
                f"top_k={settings.top_k}, and {model.name} has {vocab} codes", hint="leave top_k out to keep all"
            )
        sampler.method.check_model(model)
        seeds = seeds_of(settings, len(rows))
        request = ScaleRequest(
            labels=rows,
            source=settings.source or Keyed(seeds),
            temperature=float(settings.temperature),
            top_k=None if settings.top_k is None else int(settings.top_k),
            top_p=None if settings.top_p in (None, 1) else float(settings.top_p),
            cfg=float(settings.cfg) if settings.cfg else None,  # 0 is no guidance
            refiner=draft_models.for_scales(sampler, model),
        )
        return MapCall(sampler, request, seeds, settings.callback, model.weights_version, imaging)

    def result(self, call: Any, end: Finished, tokens: list[list[int]], *, draw: bool) -> dict[str, Any]:
        return {**super().result(call, end, tokens, draw=draw), "sides": self.network.scales.sides}

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        return [Spec((Part("sequential"),))]

    def cost_ratio(self, sampler: Any) -> float | None:
        refiner = draft_models.for_scales(registry.resolve(sampler, "scales"), self.network)
        return None if refiner is None else refiner.parameters / self.network.parameters
