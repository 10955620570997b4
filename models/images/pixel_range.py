"""The mean and deviation by which an image processor normalises pixels, as its settings state them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError

CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5,), (0.5,)
# Values with which postprocessing gives pixels * deviation + mean.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "rescale_factor": (None, 1 / 255),
    "do_rescale": (None, True),
    "do_normalize": (None, True),
}


def pixel_range(
    settings: Mapping[str, Any], where: str, absent: tuple[Sequence[float], Sequence[float]] = HALF
) -> tuple[Tensor, Tensor]:
    """The mean [3] and deviation [3] of pixels in [0, 1]; `absent` holds both for settings that lack them.

    Raises ModelError for a mean or deviation of another shape, and for settings that postprocess otherwise.
    """
    for key, values in _PLAIN.items():
        if (value := settings.get(key)) not in values:
            raise ModelError(f"{where}: {key}={value!r} is not supported (only {values[1]!r})")
    found = []
    for name, own in zip(("image_mean", "image_std"), absent, strict=True):
        stated = own if settings.get(name) is None else settings[name]
        try:
            found.append(torch.tensor(stated, dtype=torch.float32).expand(3))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(f"{where}: {name} is {stated!r}", "it must be a number, or one per colour") from error
    return found[0], found[1]
