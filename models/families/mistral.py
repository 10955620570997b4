"""Mistral, as transformers has it: Llama's stack, in the first versions with a sliding window in every layer."""

from __future__ import annotations

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, shape


def _decoder(config: Config) -> DecoderConfig:
    kind = "ministral" if "layer_types" in config else "mistral"  # the class that transformers' auto classes choose
    return shape(config, kind, qkv_bias=False)


MISTRAL = register(
    FamilySpec(
        name="mistral",
        summary="Mistral",
        matches=lambda config: config.get("model_type") == "mistral",
        decoder=_decoder,
        names=NAMES,
        attention="causal",
        shift=1,
        keys=LLAMA_LIKE.also("sliding_window", "layer_types", attention_chunk_size=(None,)),
        harmless=HARMLESS,
    )
)
