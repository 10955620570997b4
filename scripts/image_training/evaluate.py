"""How well a tokenizer keeps what a picture shows: reconstructions of fresh pictures, read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from image_training.data import fresh
from pardec.models.vision.vq import VQ, to_pictures, to_pixels
from pardec.pictures.reading import read
from pardec.pictures.scenes import captions, parse

SEED = 7
TOGETHER = 25  # pictures at a time


@torch.inference_mode()
def reconstruction(model: VQ, count: int) -> dict[str, Any]:
    """Share of `count` fresh pictures of held-out captions whose reconstruction reads back as the caption says.

    Captions are gone through again, with other pictures, where there are fewer than `count`.
    """
    held = captions("heldout", min(count, 500), SEED)
    wanted = [held[i % len(held)] for i in range(count)]
    pictures = fresh(wanted, SEED)
    used = np.zeros(model.shape.codebook_size, np.int64)
    made = []
    for start in range(0, count, TOGETHER):
        codes = model.encode(to_pixels(pictures[start : start + TOGETHER]))
        used += np.bincount(codes.flatten().numpy(), minlength=len(used))
        made.append(to_pictures(model.decode(codes)))
    back = np.concatenate(made)
    scenes = [parse(caption).canonical() for caption in wanted]
    right = [seen.scene() == scene for seen, scene in zip(read(back), scenes, strict=True)]
    originals = [seen.scene() == scene for seen, scene in zip(read(pictures), scenes, strict=True)]
    share = used[used > 0] / used.sum()
    return {
        "pictures": count,
        "right": sum(right) / count,
        "originals_right": sum(originals) / count,
        "error": round(float(np.abs(back.astype(np.float32) - pictures).mean()), 2),
        "codes_used": int((used > 0).sum()),
        "code_entropy_nats": round(float(-(share * np.log(share)).sum()), 3),
    }
