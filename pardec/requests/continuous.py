"""One call of `generate` on a model with continuous tokens, checked and ready for the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.continuous.contracts import ContinuousSampler, ImageRequest
from pardec.samplers.rng import Keyed

from . import draft_models
from .class_images import ClassCall, class_rows
from .images import imaging_for, size_of
from .settings import Settings
from .text import seeds_of

if TYPE_CHECKING:
    from pardec.models.continuous.contracts import ContinuousModel

_OF_IDS = ("top_k", "top_p", "min_p", "cfg_interval", "allowed", "logprobs", "logprob_ids")


@dataclass(frozen=True, slots=True)
class VectorCall(ClassCall):
    """The input of the continuous loop."""

    sampler: ContinuousSampler
    request: ImageRequest

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """No ids, since continuous tokens have none; and how many tokens were generated, which are all of an image."""
        return [], self.tokens

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments as resolved, as JSON can hold them."""
        values: dict[str, Any] = {"temperature": self.request.temperature, "cfg": self.request.cfg}
        return values if self.request.size is None else {**values, "size": list(self.request.size)}


def prepare(model: ContinuousModel, prompt: Any, settings: Settings) -> VectorCall:
    """Reads the classes and resolves every argument for this model.

    Raises:
        SpecError: an argument that cannot work.
        ModelError: a sampler that cannot run on the model.
    """
    sampler = registry.resolve(settings.sampler, "continuous")
    for name in _OF_IDS:
        if getattr(settings, name) is not None:
            raise SpecError(f"{name} is for tokens with ids; {model.name} has continuous tokens", f"leave {name} out")
    imaging = imaging_for(model.imaging, settings)
    rows = class_rows(model, imaging, prompt, settings)
    sampler.method.check_model(model)
    model.head.respaced(sampler.method.head_steps or model.head.steps)
    seeds = seeds_of(settings, len(rows))
    request = ImageRequest(
        labels=rows,
        source=settings.source or Keyed(seeds),
        temperature=float(settings.temperature),
        cfg=None if settings.cfg in (None, 1) else float(settings.cfg),  # 1 is no guidance
        size=size_of(settings),
        draft_model=draft_models.for_vectors(sampler, model),
    )
    tokens, version = imaging.layout.tokens, model.weights_version
    return VectorCall(sampler, request, tokens, seeds, settings.callback, version, imaging)
