"""How often a class-conditional model draws the requested class: images of each class in turn, recognized."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import pardec
from image_training.evaluate import fresh_of_classes
from image_training.export_mar import DEFAULTS
from pardec.comparison.metrics import wilson
from pardec.images.classes import NAMES, score
from pardec.images.distance import distance

SEED = 7
STEPS = 18  # forwards of a picture of vectors
TOGETHER = 36  # images at a time
_FIELDS = ("count", "shape", "colour", "size")


def painted_right(
    folder: Path,
    count: int,
    *,
    decoder: Path | None = None,
    sampler: str = f"mar:steps={STEPS}",
    settings: Mapping[str, float] = DEFAULTS,
) -> dict[str, Any]:
    """Shares of `count` images that show their class; `settings` are arguments of `generate`."""
    model = pardec.load(folder, device="cpu", decoder=None if decoder is None else str(decoder))
    labels = [row % len(NAMES) for row in range(count)]
    made, forwards = [], 0
    for start in range(0, count, TOGETHER):
        some = labels[start : start + TOGETHER]
        seeds = [SEED * 1_000_003 + row for row in range(start, start + len(some))]
        result = model.generate(label=some, sampler=sampler, seed=seeds, **settings)
        forwards += sum(result.nfe)
        made += [np.asarray(picture) for picture in result.images or ()]
    pictures = np.stack(made)
    scores = score(pictures, labels)
    right = float(np.mean([one.right for one in scores]))
    low, high = wilson(right, count)
    true = fresh_of_classes(count)[1]
    return {
        "pictures": count,
        "settings": ", ".join((sampler, *(f"{key} {value:g}" for key, value in settings.items()))),
        "forwards": forwards / count,
        "right": right,
        "right_from": low,
        "right_to": high,
        **{of: round(float(np.mean([getattr(one, of) for one in scores])), 3) for of in _FIELDS},
        "distance": round(distance(pictures, true), 2) if count > 1 else None,
    }
