"""SDAR and TraDo: Qwen3's stack and names, block-causal, predictions at their own position."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN3_KEYS, both_ways, shape

BLOCK_IN_NAME = r"-b(\d+)(?![\d.])"  # ends published names where blocks are longer than 4

SDAR = register(
    FamilySpec(
        name="sdar",
        summary="SDAR, TraDo (dense)",
        matches=lambda config: config.get("model_type") == "sdar",
        decoder=lambda config: shape(config, "qwen3", qk_norm=True),
        names=NAMES,
        attention="block-causal",
        shift=0,
        keys=both_ways(QWEN3_KEYS).also(use_sliding_window=(False, None)),
        mask=(151669, "<|MASK|>"),
        turn_ends={151645: "<|im_end|>"},
        block=4,
        block_in_name=BLOCK_IN_NAME,
        harmless=HARMLESS,
    )
)
