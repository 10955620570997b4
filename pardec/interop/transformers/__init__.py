"""pardec inside transformers' `generate`, and transformers' candidate generators inside pardec.

    from pardec.interop.transformers import generate
    model.generate(**inputs, custom_generate=generate, sampler="recycling", max_new_tokens=100)

decodes any causal LM of transformers with a pardec sampler; the rest of the call means what it always did. `candidates`
makes a sampler of a `CandidateGenerator`, for that call as well as for pardec's own `Model.generate`.
"""

from __future__ import annotations

from .candidates import candidates
from .generation import Output, generate

__all__ = ["Output", "candidates", "generate"]
