"""Llama 2 and 3: causal, with the biases and rotary scaling of the config."""

from __future__ import annotations

from .base import FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, NO_WINDOWS, shape
from .stable_diffcoder import is_stable_diffcoder

LLAMA = register(
    FamilySpec(
        name="llama",
        summary="Llama 2 and 3",
        matches=lambda config: config.get("model_type") == "llama" and not is_stable_diffcoder(config),
        decoder=lambda config: shape(config, "llama"),
        names=NAMES,
        attention="causal",
        shift=1,
        keys=LLAMA_LIKE.also("attention_bias", "mlp_bias", **NO_WINDOWS),
        harmless=HARMLESS,
    )
)
