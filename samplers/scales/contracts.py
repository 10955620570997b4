"""The contracts of the scale loop, which samples images map by map, coarse to fine: request, context and method.

All rows of a request are at the same scale. As in the other loops, methods are immutable, and what one remembers over a
request is the state that its `start` returns.
Letters: n rows, S scales, n_s codes of scale s, L codes of all scales, V codes of the codebook, C numbers of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pardec.models.scales.contracts import ScaleModel

from ..spec import Spec
from ..spec_values import build_single
from ..stopwatch import Stopwatch
from .state import MapState
from .state import ScaleRequest as ScaleRequest


@dataclass(frozen=True, eq=False)
class ScaleContext:
    """The model and maps that a method uses during a request."""

    model: ScaleModel
    request: ScaleRequest
    maps: MapState
    watch: Stopwatch


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The counts of a round's forward, for results."""

    fed: range  # the positions among L that the forward was fed
    draft: bool = False  # whether the request's second model ran it
    tokens: int | None = None  # positions of `fed` that a layer computed on average; None: all


class Method(Protocol):
    """Samples token maps, round by round. It may also have an attribute `exact`."""

    @property
    def needed_model(self) -> str | None:
        """The checkpoint that samples some of the scales, which the caller hands in as `ScaleRequest.refiner`."""
        ...

    def check_model(self, model: ScaleModel) -> None:
        """Raises for a model that it does not work with, before the second model's weights are read."""
        ...

    def start(self, context: ScaleContext) -> Any:
        """The method's state for this request."""
        ...

    def round(self, context: ScaleContext, state: Any) -> RoundResult:
        """Commits the codes of the next scale of every row (`maps.commit`), with one forward of a transformer."""
        ...


@dataclass(frozen=True)
class ScaleSampler:
    """A resolved spec of the scale loop."""

    spec: Spec
    exact: str
    method: Method

    @cached_property
    def stages(self) -> tuple[Any, ...]:
        """All stages."""
        return (self.method,)


def build(spec: Spec, *, sampling: bool = False) -> ScaleSampler:
    """Builds the sampler with the one method of the spec. Raises SpecError if the spec names several."""
    return ScaleSampler(*build_single(spec, "scales", "a sampler of token maps"))
