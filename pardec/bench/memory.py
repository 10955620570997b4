"""Checks that memory does not grow with batch x length x vocabulary, by the peaks of larger and larger decodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pardec
from pardec.models.errors import ModelError
from pardec.samplers.events import Finished

from ..memory import Peak
from .decode import prompt_ids

SIZES = ((1, 256), (2, 512), (4, 1024), (8, 1024))  # rows, tokens to fill


def sweep(model: pardec.Model, sizes: Sequence[tuple[int, int]] = SIZES) -> Iterator[dict[str, Any]]:
    """One row per size, smallest first: the first step needs logits at all positions, in one block over the canvas.

    `logits_bytes` is the size of float32 logits of all positions, `peak_bytes` the peak above the memory in use before
    the decode, None where it cannot be measured. Lengths stop at the model's maximum. Run it in a fresh process: memory
    freed before, but not returned to the system, hides growth.

    Raises ModelError for models that are not masked, whose forwards need no logits of a whole canvas.
    """
    if model.family != "masked":
        raise ModelError(
            f"{model.name} is not a masked model, so its forwards never need logits at all positions at once",
            "name a masked model, such as tiny-dream",
        )
    network = model.language_model
    for rows, tokens in sizes:
        length = min(tokens, (network.max_positions or tokens + 1) - 1)
        ids = prompt_ids(model, 1).repeat(rows, 1)
        call = model.prepare(
            input_ids=ids, sampler="fixed:steps=2", max_new_tokens=length, block_length=length, stop_ids=[]
        )
        peak = Peak(network.device)
        peak.reset()
        before = peak.read()
        *_, last = model.run(call, steps=False)
        after = peak.read()
        assert isinstance(last, Finished)
        yield {
            "model": model.name,
            "spec": str(call.sampler.spec),
            "batch": rows,
            "new": length,
            "vocabulary": network.vocab_size,
            "logits_bytes": 4 * rows * length * network.vocab_size,
            "peak_bytes": None if after is None or before is None else after - before,
        }
