"""The driver of image models whose tokens are vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.continuous import loop
from pardec.samplers.continuous.contracts import ContinuousSampler, ImageRequest
from pardec.samplers.rng import Keyed
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
class VectorCall(Call):
    """The request of the continuous loop."""

    sampler: ContinuousSampler
    request: ImageRequest

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """No ids, since continuous tokens have none, and the number of generated tokens: all tokens of the image."""
        return [], self.imaging.layout.tokens

    def batch_key(self, request: Any) -> tuple[Any, ...]:
        return request.temperature, request.cfg, request.size

    @property
    def settings(self) -> dict[str, Any]:
        values: dict[str, Any] = {"temperature": self.request.temperature, "cfg": self.request.cfg}
        return values if self.request.size is None else {**values, "size": list(self.request.size)}

    @property
    def shown(self) -> list[str | int | None]:
        """The class of each row, or its caption."""
        return list(self.request.labels) or [condition.text for condition in self.request.conditions]


class VectorDriver(ImageDriver):
    """Samples vectors for classes or captions with the continuous loop."""

    family = "continuous"
    drawn = image_tokens = "vectors"
    of_tokens = "with continuous tokens"
    image_decoder = "autoencoder"
    takes = Takes.VECTORS
    compared = "-s mar:steps=16 -s mar:steps=64"
    network: ContinuousModel
    network_class = ContinuousModel
    loop = staticmethod(loop.decode)

    def prepare(self, prompt: Any, arguments: Mapping[str, Any]) -> VectorCall:
        model, settings = self.network, Settings.of(arguments, self.defaults)
        spec = model.imaging.defaults.get("sampler") if settings.sampler is None else settings.sampler
        sampler = registry.resolve(spec, "continuous")
        imaging = self.imaging(settings)
        sampler.method.check_model(model)
        model.head.respaced(sampler.method.head_steps or model.head.steps)
        if model.imaging.kind == "text" and settings.prompt_embeds is not None:
            raise SpecError(f"{model.name} reads captions itself", hint="pass a prompt in place of prompt_embeds")
        classes, conditions = self.conditions(prompt, settings)
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
        return VectorCall(sampler, request, seeds, settings.callback, model.weights_version, imaging)

    def result(self, call: Any, end: Finished, tokens: list[list[int]], *, draw: bool) -> dict[str, Any]:
        assert end.latents is not None, "of the continuous loop"
        latents = torch.from_numpy(end.latents).reshape(len(tokens), *call.imaging.layout.grid, -1)
        sequences = torch.as_tensor(end.tokens)[:, :0]  # continuous tokens have no ids
        return {"sequences": sequences, "latents": latents, "images": self.images(call, latents, draw=draw)}

    def in_steps(self, steps: int) -> str:
        return f"mar:steps={steps}"

    @property
    def bench_samplers(self) -> tuple[str, ...]:
        return ("sequential",) if self.network.backbone.next_token else ("mar",)

    @classmethod
    def judged_against(cls, spec: Spec) -> list[Spec]:
        """`mar`, with the same steps."""
        steps = tuple(pair for part in spec.parts for pair in part.params if pair[0] == "steps")
        return [Spec((Part("mar", steps),))]
