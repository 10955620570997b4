"""Builds the scale loop's sampler from a parsed spec, which names one method."""

from __future__ import annotations

from ..spec import Spec
from ..spec_values import build_single
from .contracts import ScaleSampler


def build(spec: Spec, *, sampling: bool = False) -> ScaleSampler:
    """Builds the sampler with the one method of the spec. Raises SpecError if the spec names several."""
    return ScaleSampler(*build_single(spec, "scales", "a sampler of token maps"))
