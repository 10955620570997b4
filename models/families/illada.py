"""iLLaDA: Llama's stack, bidirectional, predictions at their own position (arXiv:2606.25331)."""

from __future__ import annotations

from dataclasses import replace

from .base import FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, both_ways, shape

ILLADA = register(
    FamilySpec(
        name="illada",
        summary="iLLaDA",
        matches=lambda config: config.get("model_type") == "illada",
        decoder=lambda config: shape(config, "llama"),
        names=NAMES,
        attention="bidirectional",
        shift=0,
        keys=replace(
            both_ways(LLAMA_LIKE).also("attention_bias", "mlp_bias", sliding_window=(None,), layer_types=(None,)),
            defaults={"tie_word_embeddings": True},
        ),
        mask=(5, "<|mask|>"),
        harmless=HARMLESS,
    )
)
