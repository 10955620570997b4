"""What the shapes share: where a length controller leaves off."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pardec.samplers.verifying import Scene


def left_off(scene: Scene, logits: Tensor, real: Tensor | None, step: int) -> np.ndarray | None:
    """[B] bool: the rows that leave off behind level `step`, from 0; None where all go on.

    Args:
        logits: [B, K, V] processed, behind the nodes of the level.
        real: [B, K] bool: the others are padding.
        step: the level that is about to be drawn.
    """
    length = scene.sampler.length
    if length is None:
        return None
    sure = logits.softmax(-1).amax(-1)
    sure = sure if real is None else sure.masked_fill(~real, 0)
    stop = length.stop(sure.amax(1), step, scene, scene.state(length))
    return None if stop is None else stop.cpu().numpy()


def drops(scene: Scene) -> bool:
    """Whether the token that made the controller stop is left out."""
    return bool(getattr(scene.sampler.length, "drops", False))
