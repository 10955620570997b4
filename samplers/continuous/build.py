"""From a parsed spec to the sampler that the continuous loop runs: one method."""

from __future__ import annotations

from pardec.models.errors import SpecError

from ..spec import Spec
from ..spec_values import build_method, exactness, full
from .contracts import ContinuousSampler


def build(spec: Spec, *, sampling: bool = False) -> ContinuousSampler:
    """The one method that the spec names. Raises SpecError for several."""
    if len(spec.parts) != 1 or spec.cache is not None:
        raise SpecError(f"{str(spec)!r} has several parts, and vectors are drawn by one", hint="name one method")
    (part,) = spec.parts
    method = build_method(part, "continuous")
    return ContinuousSampler(Spec((full(part.name, method),)), exactness(part.name, method, "continuous"), method)
