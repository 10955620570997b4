"""The layer of an EAGLE-3 with packed weights for the few pairs of a single row: C kernels called without PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..kernels.attention import mask_of_the_last
from ..kernels.cpu.layers import LayersInC, usable
from ..layers.rope import Rope
from ..plan import Plan

MOST = 32  # with more queries, the kernels themselves dominate the time


def few_pairs(
    layer: LayersInC, h: Tensor, inputs: Tensor, plan: Plan, cache: KVCache, rope: Rope, *, last: bool
) -> Tensor | None:
    """The states after `layer` of pairs h [M, E], or of the `last` one alone, whose attention reads `inputs` [M, I].

    None where the layer is to run operation by operation: for several rows, a text's first pairs, many of them, or
    another cache.
    """
    extent = plan.uniform
    if (
        plan.batch != 1
        or extent is None
        or not plan.width <= min(MOST, extent - 1)
        or extent > cache.capacity
        or plan.slot_span != (extent - plan.width, extent)
        or type(cache) is not KVCache
        or cache.shared is not None
        or cache.shift is not None
        or cache.batch != 1
        or not usable(h.device, h.dtype)
        or not h.dtype == inputs.dtype == cache.k[0].dtype
        or not layer.fits(h.dtype)
    ):
        return None
    mask = None
    if last:
        if plan.visible.kind != "causal" or int(plan.want) != plan.width - 1:
            return None
        h = h[-1:]
    else:
        visible = mask_of_the_last(plan, extent)
        if visible is None:
            return None
        mask = torch.from_numpy(np.where(visible.numpy(), np.float32(0), np.float32(-np.inf)))
    cos, sin = rope.rows(plan, limit=cache.capacity, device=h.device)
    where: dict[str, Any] = {"kv": (cache.k, cache.v), "first": extent - plan.width, "mask": mask}
    tables = cos.contiguous(), sin.contiguous()
    return layer.forward(h.contiguous(), tables, 1, extent, inputs=inputs.contiguous(), **where)
