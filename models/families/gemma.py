"""Gemma, first generation: a GELU gate, embeddings times the root of the width, norms that multiply by 1 + w.

Below float32, 1 + w is rounded to the model's dtype, which transformers does not do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, NO_WINDOWS, shape

if TYPE_CHECKING:
    from torch import Tensor

GEMMA_KEYS = LLAMA_LIKE.also("attention_bias", use_bidirectional_attention=(None, False))


def _decoder(config: Config) -> DecoderConfig:
    plain = shape(config, "gemma")  # its class reads the first checkpoints' "gelu" as the tanh approximation
    return replace(plain, embedding_scale=plain.width**0.5)


def add_one(name: str, tensor: Tensor, config: DecoderConfig) -> Tensor:
    """Adds 1 to the weights of norms, which files store centred on zero."""
    return tensor.float() + 1 if name.endswith(("norm.weight", "_norm")) else tensor


GEMMA = register(
    FamilySpec(
        name="gemma",
        summary="Gemma (first generation)",
        matches=lambda config: config.get("model_type") == "gemma",
        decoder=_decoder,
        names=NAMES,
        attention="causal",
        shift=1,
        keys=GEMMA_KEYS.also(**NO_WINDOWS),
        harmless=HARMLESS,
        convert=add_one,
    )
)
