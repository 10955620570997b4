"""pardec samplers in transformers' `generate`, and transformers' candidate generators as pardec drafters.

    from pardec.interop.transformers import generate
    model.generate(**inputs, custom_generate=generate, sampler="recycling", max_new_tokens=100)

decodes any causal LM of transformers with a pardec sampler; the other arguments keep their meaning. `candidates` makes
a sampler from a `CandidateGenerator`, for that call and for pardec's own `Model.generate`.
"""

from __future__ import annotations

from .candidates import candidates
from .generation import Output, generate

__all__ = ["Output", "candidates", "generate"]
