"""Qwen3-MoE: Qwen3's attention, and in most layers experts, as transformers has them."""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .experts import EXPERT_NAMES, LAYOUTS, softmax_experts
from .llama_like import HARMLESS, shape


def decoder(config: Config) -> DecoderConfig:
    """Qwen3's stack with experts."""
    return replace(shape(config, "qwen3_moe", qk_norm=True), experts=softmax_experts(config, "qwen3_moe"))


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
        harmless=HARMLESS,
    )
)
