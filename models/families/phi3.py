"""Phi-3, Phi-3.5 and Phi-4 with plain rotary positions: Llama's stack, its projections published fused."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, NO_LAYER_TYPES, shape

_LAYER = "model.layers.{i}."

PHI3 = register(
    FamilySpec(
        name="phi3",
        summary="Phi-3, Phi-4",
        matches=lambda config: config.get("model_type") == "phi3",
        decoder=lambda config: shape(config, "phi3", qkv_bias=False, partial=True),
        names={
            **NAMES,
            "layers.{i}.qkv_weight": _LAYER + "self_attn.qkv_proj.weight",
            "layers.{i}.gate_up_weight": _LAYER + "mlp.gate_up_proj.weight",
        },
        attention="causal",
        shift=1,
        keys=LLAMA_LIKE.also("sliding_window", **NO_LAYER_TYPES),
        harmless=HARMLESS,
    )
)
