"""Emu3: text and the codes of images in one vocabulary, through a Llama block.

Emu3: Next-Token Prediction is All You Need, https://arxiv.org/abs/2409.18869

Two layouts are published: transformers' own (model_type "emu3"), with the image tokenizer in the same files, and the
authors' (model_type "Emu3"), with a flat config and an image tokenizer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..decoder_config import DecoderConfig
from ..errors import ModelError
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, shape

VQ_PREFIXES = ("model.vqmodel.", "vqmodel.")  # prefixes of the image tokenizer's tensors, in a state dict and in files
_POSITIONS = 9216  # where a config names none

_Names = dict[str, str | tuple[str, ...]]


TEXT_KEYS = LLAMA_LIKE.also("attention_bias", "mlp_bias")
EMU3_KEYS = replace(
    TEXT_KEYS.also("model_type"), inside={"text_config": TEXT_KEYS.without("tie_word_embeddings")}
)  # two layouts: one object, or a nested object for the transformer


def text_config(config: Config) -> Config:
    """The part of a config that describes the transformer. Raises ModelError where it is no object."""
    if config.get("model_type") == "Emu3":
        return config
    inner: Any = config.get("text_config") or {}
    if not isinstance(inner, Mapping):
        raise ModelError(f"text_config in config.json is {type(inner).__name__}, not an object")
    return dict(inner)


def _decoder(config: Config) -> DecoderConfig:
    text = text_config(config)
    if text is not config and "tie_word_embeddings" in config:  # the class reads only the whole model's
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return shape(text, "emu3_text_model")


def _named(prefix: str, head: str) -> _Names:
    """The names of a Llama stack with another prefix and head."""

    def renamed(stem: str) -> str:
        return head if stem == "lm_head.weight" else prefix + stem.removeprefix("model.")

    return {key: renamed(stem) if isinstance(stem, str) else tuple(map(renamed, stem)) for key, stem in NAMES.items()}


EMU3 = register(
    FamilySpec(
        name="emu3",
        summary="Emu3: images of a caption, in many sizes",
        matches=lambda config: config.get("model_type") in ("emu3", "Emu3"),
        decoder=_decoder,
        names=_named("model.text_model.", "lm_head.weight"),
        layouts=(_named("text_model.model.", "text_model.lm_head.weight"), NAMES),
        attention="causal",
        shift=1,
        keys=EMU3_KEYS,
        harmless=(*HARMLESS, *(prefix.replace(".", r"\.") + ".*" for prefix in VQ_PREFIXES)),
        pictured=tuple(prefix.replace(".", r"\.") + r"(?!encoder\.|quant_conv\.).*" for prefix in VQ_PREFIXES),
        imaging="pardec.models.images.emu3:build",
        draws="text",
        positions=lambda config: text_config(config).get("max_position_embeddings", _POSITIONS),
    )
)
