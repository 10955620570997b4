"""pardec samplers in diffusers, and diffusers' schedulers in pardec.

`PardecPipeline` takes the arguments of diffusers' LLaDA2Pipeline and decodes with pardec's loop, samplers and caches;
`PardecScheduler` is a sampler spec as a scheduler for LLaDA2Pipeline itself; `policy` turns a diffusers scheduler into
a sampler for `Model.generate`.
"""

from __future__ import annotations

try:
    from diffusers import BlockRefinementScheduler, EntropyBoundScheduler, LLaDA2Pipeline  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pardec.interop.diffusers needs a diffusers with LLaDA2Pipeline, EntropyBoundScheduler and "
        f"BlockRefinementScheduler (pip install -U diffusers): {error}"
    ) from error

from .pipeline import PardecPipeline
from .policy import policy
from .scheduler import PardecScheduler

__all__ = ["PardecPipeline", "PardecScheduler", "policy"]
