"""MMaDA: LLaDA with the codes of MAGVIT-v2 after its text vocabulary; it draws captions, and writes text.

MMaDA: Multimodal Large Diffusion Language Models, https://arxiv.org/abs/2505.15809
"""

from __future__ import annotations

from dataclasses import replace

from .base import Config, architecture, register
from .llada import LLADA, LLADA_KEYS, decoder


def is_mmada(config: Config) -> bool:
    """Whether a config is one of MMaDA's, some of which keep LLaDA's model_type."""
    return config.get("model_type") == "mmada" or architecture(config) == "MMadaModelLM"


def _shape(config: Config) -> Config:
    """The config with the size of the embeddings, which `new_vocab_size` names."""
    return {**config, "embedding_size": config.get("new_vocab_size") or config.get("embedding_size")}


MMADA = register(
    replace(
        LLADA,
        name="mmada",
        summary="MMaDA (images of captions)",
        matches=is_mmada,
        decoder=lambda config: decoder(_shape(config)),
        keys=LLADA_KEYS.also("new_vocab_size"),
        assumed={},  # its config class has no defaults
        imaging="pardec.models.images.mmada:build",
        text=True,
        draws="text",
    )
)
