"""Chameleon, Anole and Lumina-mGPT: text and the codes of images in one vocabulary, through blocks with head norms.

Chameleon: Mixed-Modal Early-Fusion Foundation Models, https://arxiv.org/abs/2405.09818

The image tokenizer's encoder may lie in the same files; its decoder never does.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, shape

MODEL_TYPES = ("chameleon", "xllmx_chameleon")
_LAYER = "model.layers.{i}."
_HEADS: dict[str, str | tuple[str, ...]] = {
    "layers.{i}.q_norm_bias": _LAYER + "self_attn.q_norm.bias",
    "layers.{i}.k_norm_bias": _LAYER + "self_attn.k_norm.bias",
}
_POST_NORMS: dict[str, str | tuple[str, ...]] = {
    "layers.{i}.post_attn_norm": _LAYER + "input_layernorm.weight",
    "layers.{i}.post_mlp_norm": _LAYER + "post_attention_layernorm.weight",
}
_BEFORE = ("layers.{i}.attn_norm", "layers.{i}.mlp_norm")


def _decoder(config: Config) -> DecoderConfig:
    plain = shape(config, "chameleon")
    return replace(plain, head_norms=True, post_norms=bool(config.get("swin_norm")))


def _matches(config: Config, post_norms: bool) -> bool:
    return config.get("model_type") in MODEL_TYPES and bool(config.get("swin_norm")) == post_norms


def _register(name: str, summary: str, names: dict[str, str | tuple[str, ...]], *, post_norms: bool) -> FamilySpec:
    return register(
        FamilySpec(
            name=name,
            summary=summary,
            matches=lambda config: _matches(config, post_norms),
            decoder=_decoder,
            names=names,
            attention="causal",
            shift=1,
            keys=LLAMA_LIKE.without("head_dim").also("attention_bias", "mlp_bias", "swin_norm"),
            harmless=(*HARMLESS, r"model\.vqmodel\..*"),
            imaging="pardec.models.images.chameleon:build",
            draws="text",
        )
    )


CHAMELEON = _register(
    "chameleon", "Chameleon, Anole, Lumina-mGPT: images of a caption", {**NAMES, **_HEADS}, post_norms=False
)
CHAMELEON_LARGE = _register(
    "chameleon-large",
    "Chameleon-30B, Lumina-mGPT-34B: images of a caption",
    {**{key: stem for key, stem in NAMES.items() if key not in _BEFORE}, **_HEADS, **_POST_NORMS},
    post_norms=True,
)
