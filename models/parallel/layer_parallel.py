"""Whether layers of a model can run on the same input: see `layer_groups`."""

from __future__ import annotations

from ..cuda_graphs.runner import plain_decoder
from ..errors import ModelError
from ..model import LanguageModel
from ..trimmed import Trimmed


def check_parallel(model: LanguageModel) -> None:
    """Raises ModelError unless layers of `model` can run on the same input."""
    stack = plain_decoder(model.decoder.base if isinstance(model.decoder, Trimmed) else model.decoder)
    if stack is not None and stack.placement is None and not stack.config.canvas and model.processes == 1:
        return
    raise ModelError(
        f"layers of {model.name} cannot run in parallel: it does not run in the native decoder on one device",
        "leave parallel out",
    )
