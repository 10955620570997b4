"""Gemma 3's text models: Gemma 2's norms, RMSNorm of queries and keys, a sliding window in five of six layers."""

from __future__ import annotations

from .base import FamilySpec, register
from .gemma import add_one
from .gemma2 import GEMMA2_KEYS, GEMMA_NAMES, gemma_shape
from .llama_like import HARMLESS

# Its class in transformers has attn_logit_softcapping, but does not use it.
GEMMA3_KEYS = GEMMA2_KEYS.without("attn_logit_softcapping").also("sliding_window_pattern", "rope_local_base_freq")

GEMMA3 = register(
    FamilySpec(
        name="gemma3",
        summary="Gemma 3 (text)",
        matches=lambda config: config.get("model_type") == "gemma3_text",
        decoder=lambda config: gemma_shape(config, "gemma3_text", qk_norm=True),
        names=GEMMA_NAMES,
        attention="causal",
        shift=1,
        keys=GEMMA3_KEYS,
        harmless=HARMLESS,
        convert=add_one,
    )
)
