"""How often an image model draws its captions correctly: images of held-out captions, recognized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pardec
from image_training.data import fresh
from pardec.comparison.metrics import wilson
from pardec.images.distance import distance
from pardec.images.scenes import captions, parse
from pardec.images.scoring import score

SEED = 7
TOGETHER = 25  # images at a time


def drawn_right(folder: Path, count: int) -> dict[str, Any]:
    """Shares of `count` held-out captions whose images show all of it, decoded one token per forward."""
    model = pardec.load(folder, device="cpu")
    said = captions("heldout", count, SEED)
    imaging = model.language_model.imaging
    assert imaging is not None, "an image model"
    settings = dict(imaging.defaults)
    made, forwards = [], 0
    for start in range(0, count, TOGETHER):
        seeds = [SEED * 1_000_003 + row for row in range(start, min(start + TOGETHER, count))]
        result = model.generate(said[start : start + TOGETHER], sampler="sequential", seed=seeds, **settings)
        forwards += sum(result.nfe)
        made += [np.asarray(picture) for picture in result.images or ()]
    pictures = np.stack(made)
    scores = score(pictures, said)
    two = np.array([len(parse(caption).things) == 2 for caption in said])
    right = np.array([one.right for one in scores])
    low, high = wilson(float(right.mean()), count)
    means = {f: round(float(np.mean([getattr(s, f) for s in scores])), 3) for f in _FIELDS}
    return {
        "pictures": count,
        "settings": ", ".join(f"{key} {value:g}" for key, value in settings.items()),
        "forwards": forwards / count,
        "right": float(right.mean()),
        "right_from": low,
        "right_to": high,
        "one": float(right[~two].mean()) if (~two).any() else 0.0,
        "ones": int((~two).sum()),
        "two": float(right[two].mean()) if two.any() else 0.0,
        "twos": int(two.sum()),
        **means,
        "distance": round(distance(pictures, fresh(said, SEED + 1)), 2) if count > 1 else None,
    }


_FIELDS = ("count", "shapes", "colours", "sizes", "place", "background")
