"""Mistral, as transformers has it: Llama's stack, in the first versions with a sliding window in every layer."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, shape

MISTRAL = register(
    FamilySpec(
        name="mistral",
        summary="Mistral",
        matches=lambda config: config.get("model_type") == "mistral",
        decoder=lambda config: shape(config, "mistral", qkv_bias=False),
        names=NAMES,
        attention="causal",
        shift=1,
        harmless=HARMLESS,
    )
)
