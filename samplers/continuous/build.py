"""From a parsed spec to the sampler that the continuous loop runs: one method."""

from __future__ import annotations

from ..spec import Spec
from ..spec_values import build_single
from .contracts import ContinuousSampler


def build(spec: Spec, *, sampling: bool = False) -> ContinuousSampler:
    """The one method that the spec names. Raises SpecError for several."""
    return ContinuousSampler(*build_single(spec, "continuous", "vectors are drawn"))
