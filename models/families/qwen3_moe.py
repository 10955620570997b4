"""Qwen3-MoE: Qwen3's attention, and in most layers experts, as transformers has them."""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .experts import EXPERT_NAMES, LAYOUTS, softmax_experts
from .llama_like import HARMLESS, NO_LAYER_TYPES, QWEN3_KEYS, shape


def decoder(config: Config) -> DecoderConfig:
    """Qwen3's stack with experts."""
    return replace(shape(config, "qwen3_moe", qk_norm=True), experts=softmax_experts(config, "qwen3_moe"))


# Either all layers have a sliding window or none has; its layers do not read layer_types.
QWEN3_MOE_KEYS = QWEN3_KEYS.without("max_window_layers", "layer_types").also(
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
)

QWEN3_MOE = register(
    FamilySpec(
        name="qwen3_moe",
        summary="Qwen3-MoE",
        matches=lambda config: config.get("model_type") == "qwen3_moe",
        decoder=decoder,
        names=EXPERT_NAMES,
        layouts=LAYOUTS,
        attention="causal",
        shift=1,
        keys=QWEN3_MOE_KEYS.also(**NO_LAYER_TYPES),
        harmless=HARMLESS,
    )
)
