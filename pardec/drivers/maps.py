"""The driver of image models that predict token maps, coarse to fine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.scales.contracts import ScaleModel, values
from pardec.samplers import registry
from pardec.samplers.rng import Keyed
from pardec.samplers.scales import loop
from pardec.samplers.scales.contracts import ScaleRequest, ScaleSampler
from pardec.samplers.spec import Part, Spec

from ..requests import draft_models
from ..requests.argument import Takes
from ..requests.call import Call
from ..requests.images import size_of
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
        own = {name: getattr(self.request, name) for name in ("temperature", "top_k", "top_p", "cfg")}
        return own if self.request.size is None else {**own, "size": list(self.request.size)}

    def batch_key(self, request: Any) -> tuple[Any, ...]:
        return request.temperature, request.top_k, request.top_p, request.cfg, request.size

    @property
    def shown(self) -> list[str | int | None]:
        """The class of each row, or its caption."""
        return list(self.request.labels) or [condition.text for condition in self.request.conditions]


class MapDriver(ImageDriver):
    """Samples token maps for classes or captions with the scale loop."""

    family = "scales"
    drawn = "token maps"
    of_tokens = "of token maps"
    takes = Takes.MAPS
    compared = "-s sequential -s code:refiner=NAME"
    network: ScaleModel
    network_class = ScaleModel
    loop = staticmethod(loop.decode)

    @property
    def least_cfg(self) -> float:  # type: ignore[override]
        return 0.0 if self.network.guidance == "growing" else 1.0

    def prepare(self, prompt: Any, arguments: Mapping[str, Any]) -> MapCall:
        settings = Settings.of(arguments, self.defaults)
        imaging = self.imaging(settings)
        settings.check_sampled("num_images", "images", 1)
        spec = imaging.defaults.get("sampler") if settings.sampler is None else settings.sampler
        sampler = registry.resolve(spec, "scales")
        model = self.network.of_size(size := size_of(settings))
        classes, conditions = self.conditions(prompt, settings)
        if settings.top_k is not None and settings.top_k > model.quantizer.vocab:
            raise SpecError(
                f"top_k={settings.top_k}, and {model.name} has {values(model.quantizer)}",
                hint="leave top_k out to keep all",
            )
        sampler.method.check_model(model)
        seeds = seeds_of(settings, len(classes or conditions))
        request = ScaleRequest(
            labels=classes,
            conditions=conditions,
            source=settings.source or Keyed(seeds),
            temperature=float(settings.temperature),
            top_k=None if settings.top_k is None else int(settings.top_k),
            top_p=None if settings.top_p in (None, 1) else float(settings.top_p),
            cfg=None if settings.cfg in (None, self.least_cfg) else float(settings.cfg),
            size=size,
            refiner=draft_models.for_scales(sampler, model),
        )
        return MapCall(sampler, request, seeds, settings.callback, model.weights_version, imaging)

    def result(self, call: Any, end: Finished, tokens: list[list[int]], *, draw: bool) -> dict[str, Any]:
        return {**super().result(call, end, tokens, draw=draw), "sides": call.imaging.layout.scales.sides}

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        return [Spec((Part("sequential"),))]

    def cost_ratio(self, sampler: Any) -> float | None:
        refiner = draft_models.for_scales(registry.resolve(sampler, "scales"), self.network)
        return None if refiner is None else refiner.parameters / self.network.parameters
