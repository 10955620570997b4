"""pardec's attention as an attention function of transformers."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..caches.kv_cache import KVCache, Slots
from ..errors import ModelError
from ..kernels.attention import AttentionPattern, attend, attention_pattern
from ..plan import Plan, plan_on

ATTENTION = "pardec"  # the name that pardec's attention is registered under


@dataclass(slots=True)
class Running:
    """The state of the current forward that the attention function needs."""

    plan: Plan
    cache: KVCache | None
    heads: dict[int, tuple[int, int]] = field(default_factory=dict)  # layer -> its key/value heads and their size
    windows: set[int] = field(default_factory=set)
    prepared: dict[torch.device, tuple[AttentionPattern, Slots | None]] = field(default_factory=dict)

    def on(self, device: torch.device, dtype: torch.dtype) -> tuple[AttentionPattern, Slots | None]:
        if device not in self.prepared:
            plan, cache = plan_on(self.plan, device), self.cache
            extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
            pattern = attention_pattern(plan, extent=extent, dtype=dtype, device=device)
            self.prepared[device] = pattern, None if cache is None else cache.slots(plan)
        return self.prepared[device]


running_forward: ContextVar[Running] = ContextVar("pardec_forward")


def _tempered(module: Any, query: Tensor, plan: Plan) -> Tensor:
    """Llama 4's queries [B, H, Q, D], scaled by the plan's positions.

    The library counts the positions from what its own cache holds, and it has none here: from 0 in every forward.
    """

    def scale(positions: Tensor) -> Tensor:
        passed = torch.floor((positions.float() + 1) / module.floor_scale)
        scales: Tensor = torch.log1p(passed) * module.attn_scale + 1
        return scales

    counted = torch.arange(query.shape[2], device=query.device)[None]
    factor: Tensor = scale(plan.positions.to(query.device).clamp(min=0)) / scale(counted)
    return (query * factor[:, None, :, None]).to(query.dtype)


def _attention(
    module: nn.Module,
    query: Tensor,  # [B, H, Q, D]
    key: Tensor,  # [B, K, Q, D]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """pardec's attention with the signature of an attention function of transformers."""
    running = running_forward.get(None)
    if running is None:
        raise ModelError(
            f"a {type(module).__name__} uses pardec's attention and was called outside of a pardec forward",
            "while pardec decodes with this model, use another copy of it, with its own config",
        )
    for name in ("softcap", "s_aux", "position_bias", "indices"):
        if settings.get(name) is not None:
            raise ModelError(f"its attention uses {name}, which pardec's attention does not support")
    layer = getattr(module, "layer_idx", None)
    if layer is None or value.shape != key.shape:
        raise ModelError("its attention layers are not numbered, or their keys and values differ in size")
    if settings.get("sliding_window"):
        running.windows.add(int(settings["sliding_window"]))
    running.heads[layer] = (key.shape[1], key.shape[3])
    if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
        query = _tempered(module, query, running.plan)
    pattern, slots = running.on(query.device, query.dtype)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if scaling is not None:
        q = q * (scaling * q.shape[-1] ** 0.5)
    if slots is not None:
        k, v = slots.write(layer, k, v)
    return attend(q, k, v, pattern), None


AttentionInterface.register(ATTENTION, _attention)
