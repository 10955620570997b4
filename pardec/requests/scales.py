"""One call of `generate` on a model of token maps, checked and ready for the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest, ScaleSampler

from . import draft_models
from .argument import Takes
from .class_images import ClassCall, check_arguments, class_rows
from .images import imaging_for
from .settings import Settings
from .text import seeds_of

if TYPE_CHECKING:
    from pardec.models.scales.contracts import ScaleModel


@dataclass(frozen=True, slots=True)
class ScaleCall(ClassCall):
    """The input of the scale loop."""

    sampler: ScaleSampler
    request: ScaleRequest

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments as resolved, as JSON can hold them."""
        return {name: getattr(self.request, name) for name in ("temperature", "top_k", "top_p", "cfg")}


def prepare(model: ScaleModel, prompt: Any, settings: Settings) -> ScaleCall:
    """Reads the classes and resolves every argument for this model.

    Raises:
        SpecError: an argument that cannot work.
        ModelError: a sampler that cannot run on the model, or a model without an image tokenizer.
    """
    sampler = registry.resolve(settings.sampler, "scales")
    imaging = imaging_for(model.imaging, settings)
    check_arguments(model.name, imaging, settings, Takes.MAPS)
    rows = class_rows(model, prompt, settings)
    vocab = model.quantizer.vocab
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
    tokens = imaging.layout.tokens
    return ScaleCall(sampler, request, tokens, seeds, settings.callback, model.weights_version, imaging)
