"""From a parsed spec to the sampler that the scale loop runs: one method."""

from __future__ import annotations

from ..spec import Spec
from ..spec_values import build_single
from .contracts import ScaleSampler


def build(spec: Spec, *, sampling: bool = False) -> ScaleSampler:
    """The one method that the spec names. Raises SpecError for several."""
    return ScaleSampler(*build_single(spec, "scales", "token maps are sampled"))
