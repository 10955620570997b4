"""One call of `generate` on a model with continuous tokens, checked and ready for the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.continuous.contracts import ContinuousSampler, ImageRequest
from pardec.samplers.rng import Keyed

from . import draft_models
from .images import FOREIGN, captions, imaging_for, labels, refuse_negative, refuse_sequences, size_of
from .settings import MAX_NEW_TOKENS, Settings, repeat_each
from .text import seeds_of

if TYPE_CHECKING:
    from pardec.models.continuous.contracts import ContinuousModel
    from pardec.models.images.contracts import Condition, Imaging
    from pardec.samplers.events import Event

NO_CLASS = -1  # the label of an unconditional image
_OF_IDS = ("top_k", "top_p", "min_p", "cfg_interval", "allowed", "logprobs", "logprob_ids")


@dataclass(frozen=True, slots=True)
class VectorCall:
    """The input of the continuous loop, and the seed of each row; has the interface of `pardec.requests.text.Call`."""

    sampler: ContinuousSampler
    request: ImageRequest
    tokens: int  # of an image
    seeds: tuple[int, ...]
    callback: Callable[[Event], object] | None
    weights_version: int = 0  # of the model when it was prepared
    imaging: Imaging | None = None  # for the request's size

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """No ids, since continuous tokens have none; and how many tokens were generated, which are all of an image."""
        return [], self.tokens

    def stops(self, row: int) -> None:
        """None: an image has no stop strings."""
        return

    def take(self, rows: Sequence[int]) -> VectorCall:
        """The same request with these rows only; each keeps its seed, so it gives the same image."""
        call = replace(self, request=self.request.take(rows))
        seeds = tuple(self.seeds[row] for row in rows)
        return call.seeded(seeds) if isinstance(self.request.source, Keyed) else replace(call, seeds=seeds)

    def seeded(self, seeds: Sequence[int]) -> VectorCall:
        """The same request with other seeds, one a row."""
        return replace(self, seeds=tuple(seeds), request=replace(self.request, source=Keyed(tuple(seeds))))

    @property
    def lengths(self) -> list[int]:
        """Per row, how many tokens its image has."""
        return [self.tokens] * len(self.seeds)

    @property
    def prompts(self) -> tuple[int, ...]:
        """An image has no tokens before it."""
        return (0,) * len(self.seeds)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """An image has no end tokens."""
        return ()

    @property
    def constraints(self) -> list[str | None]:
        """Continuous tokens have no constraints."""
        return [None] * len(self.seeds)

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
    tokens = imaging.layout.tokens
    _refuse(model, settings, tokens)
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
    return VectorCall(sampler, request, tokens, seeds, settings.callback, model.weights_version, imaging)


def _conditions(
    model: ContinuousModel, prompt: Any, settings: Settings
) -> tuple[tuple[int, ...], tuple[Condition, ...]]:
    """The classes, or the captions, of all rows."""
    if model.imaging.kind == "text":
        if settings.prompt_embeds is not None:
            raise SpecError(f"{model.name} reads captions itself", hint="pass a prompt in place of prompt_embeds")
        return (), tuple(repeat_each(captions(model, prompt, settings), settings.num_images))
    refuse_negative(model.name, settings)
    classes = labels(model.name, model.imaging.classes, prompt, settings, least=NO_CLASS)
    return tuple(repeat_each(classes, settings.num_images)), ()


def _refuse(model: ContinuousModel, settings: Settings, count: int) -> None:
    """Refuses arguments without a meaning for continuous tokens."""
    for name in FOREIGN:
        if getattr(settings, name) is not None:
            raise SpecError(f"{name} is for text and {model.name} draws images", hint=f"leave {name} out")
    refuse_sequences(model.name, settings)
    for name in _OF_IDS:
        if getattr(settings, name) is not None:
            raise SpecError(f"{name} is for tokens with ids; {model.name} has continuous tokens", f"leave {name} out")
    if settings.max_new_tokens not in (MAX_NEW_TOKENS, count) or settings.block_align != "prompt":
        name = "block_align" if settings.block_align != "prompt" else "max_new_tokens"
        raise SpecError(
            f"an image of {model.name} has {count} tokens, {name}={getattr(settings, name)} was asked for",
            hint=f"leave {name} out",
        )
