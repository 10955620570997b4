"""pardec as a model of lm-evaluation-harness, to run its tasks on any checkpoint with any sampler.

    python -m pardec.interop.lm_eval run --model pardec --model_args pretrained=tiny-dream,sampler=threshold --tasks ...

is lm-eval's own command line with the model `pardec` registered. An lm-eval that reads the entry-point group
`lm_eval.models` finds it from plain `lm-eval run` as well; in Python, importing this module registers it.
"""

from __future__ import annotations

from pardec.models.errors import install

try:
    from lm_eval.api.registry import model_registry
except ImportError as error:
    raise ImportError(
        f"pardec.interop.lm_eval needs lm-evaluation-harness 0.4.13 or newer ({install('eval')}): {error}"
    ) from error

from .model import PardecLM

if "pardec" not in model_registry:  # lm-eval may have registered the entry point already
    model_registry.register("pardec")(PardecLM)

__all__ = ["PardecLM"]
