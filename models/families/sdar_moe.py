"""SDAR-MoE: Qwen3-MoE's stack and names, block-causal, predictions at their own position (arXiv:2510.06303)."""

from __future__ import annotations

from .base import FamilySpec, register
from .experts import EXPERT_NAMES, LAYOUTS
from .llama_like import HARMLESS, both_ways
from .qwen3_moe import QWEN3_MOE_KEYS, decoder
from .sdar import BLOCK_IN_NAME

SDAR_MOE = register(
    FamilySpec(
        name="sdar_moe",
        summary="SDAR-MoE",
        matches=lambda config: config.get("model_type") == "sdar_moe",
        decoder=decoder,
        names=EXPERT_NAMES,
        layouts=LAYOUTS,
        attention="block-causal",
        shift=0,
        keys=both_ways(QWEN3_MOE_KEYS).also(use_sliding_window=(False, None)),
        mask=(151669, "<|MASK|>"),
        turn_ends={151645: "<|im_end|>"},
        block=4,
        block_in_name=BLOCK_IN_NAME,
        harmless=HARMLESS,
    )
)
