"""Qwen2 and Qwen2.5: causal, with biases on q, k and v. With `text_mask_token_id` the config is SDLM's."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN2_KEYS, shape

QWEN2 = register(
    FamilySpec(
        name="qwen2",
        summary="Qwen2 and Qwen2.5",
        matches=lambda config: config.get("model_type") == "qwen2" and config.get("text_mask_token_id") is None,
        decoder=lambda config: shape(config, "qwen2", qkv_bias=True),
        names=NAMES,
        attention="causal",
        shift=1,
        keys=QWEN2_KEYS,
        harmless=HARMLESS,
    )
)
