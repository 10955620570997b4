"""Requests for images by models that are no language models: what vectors and token maps have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.models.scales.contracts import ScaleModel
from pardec.samplers.rng import Keyed

from .argument import Takes
from .images import labels, refuse_negative
from .settings import MAX_NEW_TOKENS, Settings, repeat_each

if TYPE_CHECKING:
    from pardec.models.images.contracts import Imaging
    from pardec.samplers.events import Event

NO_CLASS = -1  # the label of an unconditional image
ImageModel = ContinuousModel | ScaleModel  # models that are no language models


@dataclass(frozen=True, slots=True)
class ClassCall:
    """The input of a loop over images, and the seed of each row.

    It has the interface of `pardec.requests.text.Call`.
    """

    sampler: Any
    request: Any
    tokens: int  # of an image
    seeds: tuple[int, ...]
    callback: Callable[[Event], object] | None
    weights_version: int = 0  # of the model when it was prepared
    imaging: Imaging | None = None  # for the request's size

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """The tokens of a row of the loop, and how many were generated, which are all of an image."""
        return list(canvas), self.tokens

    def stops(self, row: int) -> None:
        """None: an image has no stop strings."""
        return

    def take(self, rows: Sequence[int]) -> ClassCall:
        """The same request with these rows only; each keeps its seed, so it gives the same image."""
        call = replace(self, request=self.request.take(rows))
        seeds = tuple(self.seeds[row] for row in rows)
        return call.seeded(seeds) if isinstance(self.request.source, Keyed) else replace(call, seeds=seeds)

    def seeded(self, seeds: Sequence[int]) -> ClassCall:
        """The same request with other seeds, one a row."""
        return replace(self, seeds=tuple(seeds), request=replace(self.request, source=Keyed(tuple(seeds))))

    @property
    def kind(self) -> tuple[Any, ...]:
        """Requests of one kind and one sampler can share a batch."""
        return tuple(self.settings.values())

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
        """Images of classes have no constraints."""
        return [None] * len(self.seeds)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments as resolved, as JSON can hold them."""
        raise NotImplementedError

    @property
    def shown(self) -> list[str | int | None]:
        """The class of each row."""
        return list(self.request.labels)


def check_arguments(name: str, imaging: Imaging, settings: Settings, kind: Takes) -> None:
    """Raises SpecError for arguments without a meaning for the model called `name`, which draws by `imaging`."""
    settings.check_taken(name, kind)
    count = imaging.layout.tokens
    if settings.max_new_tokens not in (MAX_NEW_TOKENS, count) or settings.block_align != "prompt":
        wrong = "block_align" if settings.block_align != "prompt" else "max_new_tokens"
        raise SpecError(
            f"an image of {name} has {count} tokens, {wrong}={getattr(settings, wrong)} was asked for",
            hint=f"leave {wrong} out",
        )


def class_rows(model: ImageModel, prompt: Any, settings: Settings) -> tuple[int, ...]:
    """The class of each row. Raises SpecError for a caption, and for a class that the model does not have."""
    refuse_negative(model.name, settings)
    classes = labels(model.name, model.imaging.classes, prompt, settings, least=NO_CLASS)
    return tuple(repeat_each(classes, settings.num_images))
