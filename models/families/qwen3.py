"""Qwen3 (dense): causal, with an RMSNorm on each head's query and key."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN3_KEYS, shape

QWEN3 = register(
    FamilySpec(
        name="qwen3",
        summary="Qwen3 (dense)",
        matches=lambda config: config.get("model_type") == "qwen3",
        decoder=lambda config: shape(config, "qwen3", qk_norm=True),
        names=NAMES,
        attention="causal",
        shift=1,
        keys=QWEN3_KEYS,
        harmless=HARMLESS,
    )
)
