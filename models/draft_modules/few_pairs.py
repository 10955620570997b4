"""The layer of an EAGLE-3 in 8 bits for the few pairs of a single row: C kernels called without PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..kernels.attention import mask_of_the_last
from ..kernels.cpu import layer as layer_c
from ..kernels.cpu.int8_layer import MOST, Int8Layer
from ..layers.rope import Rope
from ..plan import Plan


def few_pairs(
    layer: Int8Layer, h: Tensor, inputs: Tensor, plan: Plan, cache: KVCache, rope: Rope, *, last: bool
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
        or not layer_c.usable(h.device, h.dtype)
        or not h.dtype == inputs.dtype == layer.norm.dtype == cache.k[0].dtype
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
        mask = torch.from_numpy(np.where(visible[0].numpy(), np.float32(0), np.float32(-np.inf)))
    cos, sin = (table.reshape(plan.width, -1) for table in rope.rows(plan, limit=cache.capacity, device=h.device))
    first = extent - plan.width
    return layer.forward(h.contiguous(), inputs.contiguous(), cos, sin, cache.k[0], cache.v[0], first, mask)
