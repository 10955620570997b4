"""Builds the continuous loop's sampler from a parsed spec, which names one method."""

from __future__ import annotations

from ..spec import Spec
from ..spec_values import build_single
from .contracts import ContinuousSampler


def build(spec: Spec, *, sampling: bool = False) -> ContinuousSampler:
    """Builds the sampler with the one method of the spec. Raises SpecError if the spec names several."""
    return ContinuousSampler(*build_single(spec, "continuous", "a sampler of vectors"))
