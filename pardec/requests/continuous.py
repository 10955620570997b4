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
from .argument import Takes
from .class_images import ClassCall, check_arguments, class_rows
from .images import captions, imaging_for, size_of
from .settings import Settings, repeat_each
from .text import seeds_of

if TYPE_CHECKING:
    from pardec.models.continuous.contracts import ContinuousModel
    from pardec.models.images.contracts import Condition


@dataclass(frozen=True, slots=True)
class VectorCall(ClassCall):
    """The input of the continuous loop."""

    sampler: ContinuousSampler
    request: ImageRequest

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """No ids, since continuous tokens have none; and how many tokens were generated, which are all of an image."""
        return [], self.tokens

    @property
    def kind(self) -> tuple[Any, ...]:
        """Requests of one kind and one sampler can share a batch."""
        return self.request.temperature, self.request.cfg, self.request.size

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments as resolved, as JSON can hold them."""
        values: dict[str, Any] = {"temperature": self.request.temperature, "cfg": self.request.cfg}
        return values if self.request.size is None else {**values, "size": list(self.request.size)}

    @property
    def shown(self) -> list[str | int | None]:
        """The class of each row, or its caption."""
        return list(self.request.labels) or [condition.text for condition in self.request.conditions]


def prepare(model: ContinuousModel, prompt: Any, settings: Settings) -> VectorCall:
    """Reads the classes or captions and resolves every argument for this model.

    Raises:
        SpecError: an argument that cannot work.
        ModelError: a sampler that cannot run on the model.
    """
    own = model.imaging.defaults.get("sampler") if model.backbone.next_token else None  # the family's cannot run there
    sampler = registry.resolve(settings.sampler or own, "continuous")
    imaging = imaging_for(model.imaging, settings)
    check_arguments(model.name, imaging, settings, Takes.VECTORS)
    sampler.method.check_model(model)
    model.head.respaced(sampler.method.head_steps or model.head.steps)
    classes, conditions = _conditions(model, prompt, settings)
    seeds = seeds_of(settings, len(classes or conditions))
    request = ImageRequest(
        labels=classes,
        conditions=conditions,
        source=settings.source or Keyed(seeds),
        temperature=float(settings.temperature),
        cfg=None if settings.cfg in (None, 1) else float(settings.cfg),  # 1 is no guidance
        size=size_of(settings),
        draft_model=draft_models.for_vectors(sampler, model),
    )
    tokens = imaging.layout.tokens
    return VectorCall(sampler, request, tokens, seeds, settings.callback, model.weights_version, imaging)


def _conditions(
    model: ContinuousModel, prompt: Any, settings: Settings
) -> tuple[tuple[int, ...], tuple[Condition, ...]]:
    """The classes, or the captions, of all rows."""
    if model.imaging.kind == "class":
        return class_rows(model, prompt, settings), ()
    if settings.prompt_embeds is not None:
        raise SpecError(f"{model.name} reads captions itself", hint="pass a prompt in place of prompt_embeds")
    return (), tuple(repeat_each(captions(model, prompt, settings), settings.num_images))
