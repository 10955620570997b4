"""Whether memory grows with batch x length x vocabulary: decodes that grow, beside what all logits would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pardec
from pardec.models.errors import ModelError
from pardec.samplers.events import Finished

from ..comparison.memory import Peak
from .decode import given

SIZES = ((1, 256), (2, 512), (4, 1024), (8, 1024))  # rows, tokens to fill


def sweep(model: pardec.Model, sizes: Sequence[tuple[int, int]] = SIZES) -> Iterator[dict[str, Any]]:
    """A row a size, smallest first: the first step wants every position of one block as long as the canvas.

    `logits_bytes` is what float32 logits of all positions would take, `peak_bytes` what the decode held beyond what was
    held before it; None where it is not known. Lengths end at what the model has positions for. Run it in a fresh
    process: what was given back and is still the process's own is not counted.

    Raises ModelError for models that are not masked, whose forwards want no whole canvas.
    """
    if model.family != "masked":
        raise ModelError(f"{model.name} fills no canvas, so that its forwards never want all positions at once")
    network = model.language_model
    for rows, asked in sizes:
        length = min(asked, (network.max_positions or asked + 1) - 1)
        ids = given(model, 1).repeat(rows, 1)
        call = model.prepare(
            input_ids=ids, sampler="fixed:steps=2", max_new_tokens=length, block_length=length, stop_ids=[]
        )
        peak = Peak(network.device)
        peak.reset()
        before = peak.read()
        *_, last = model.run(call, steps=False)
        most = peak.read()
        assert isinstance(last, Finished)
        yield {
            "model": model.name,
            "spec": str(call.sampler.spec),
            "batch": rows,
            "new": length,
            "vocabulary": network.vocab_size,
            "logits_bytes": 4 * rows * length * network.vocab_size,
            "peak_bytes": None if most is None or before is None else most - before,
        }
