"""One checked call of `generate`, which a driver prepares and decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pardec.samplers.rng import Keyed

if TYPE_CHECKING:
    from pardec.samplers.events import Event

    from .stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Call:
    """One checked call of `generate`: a loop's request and a seed per row. The methods here are for image models."""

    sampler: Any
    request: Any
    seeds: tuple[int, ...]
    callback: Callable[[Event], object] | None = None
    weights_version: int = 0  # the model's version when the call was prepared
    imaging: Any = None  # the `Imaging` of images, for the request's size; None for text

    def generated(self, row: int, canvas: Sequence[int]) -> tuple[list[int], int]:
        """The generated tokens of a row with these final ids, and how many of them count."""
        return list(canvas), self.imaging.layout.tokens

    def stops(self, row: int) -> StopStrings | None:
        """The stop strings of a row; None where it has none."""
        return None

    def take(self, rows: Sequence[int]) -> Self:
        """The same request with these rows only; each row keeps its seed and thus its tokens."""
        call = replace(self, request=self.request.take(rows))
        seeds = tuple(self.seeds[row] for row in rows)
        return call.seeded(seeds) if isinstance(self.request.source, Keyed) else replace(call, seeds=seeds)

    def seeded(self, seeds: Sequence[int]) -> Self:
        """The same request with other seeds, one per row."""
        return replace(self, seeds=tuple(seeds), request=replace(self.request, source=Keyed(tuple(seeds))))

    def batch_key(self, request: Any) -> tuple[Any, ...]:
        """Requests with equal keys and the same sampler can share a batch."""
        return tuple(self.settings.values())

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in each row's canvas."""
        return [self.imaging.layout.tokens] * len(self.seeds)

    @property
    def prompts(self) -> tuple[int, ...]:
        """The number of tokens before the generated region, per row."""
        return (0,) * len(self.seeds)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids of end tokens."""
        return ()

    @property
    def constraints(self) -> list[str | None]:
        """A short hash of `allowed` per row; equal hashes mean equal constraints."""
        return [None] * len(self.seeds)

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved arguments as JSON values."""
        raise NotImplementedError

    @property
    def shown(self) -> list[str | int | None] | None:
        """The caption or class of each image, None for features; None for text."""
        return list(self.request.labels)
