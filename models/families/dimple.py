"""Dimple, text only: Qwen2's stack and names, bidirectional, shifted by one; the visual tower is left out."""

from __future__ import annotations

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN2_KEYS, both_ways, shape


def _text(config: Config) -> Config:
    """The config as Qwen2 reads it. Text has equal positions on the three rotary axes, which is plain RoPE."""
    scaling = config.get("rope_scaling") or {}
    if "mrope_section" not in scaling and "mrope" not in (scaling.get("type"), scaling.get("rope_type")):
        return config
    return {key: value for key, value in config.items() if key != "rope_scaling"}


def _decoder(config: Config) -> DecoderConfig:
    return shape(_text(config), "qwen2", qkv_bias=True)


DIMPLE = register(
    FamilySpec(
        name="dimple",
        summary="Dimple (text; the visual tower is left out)",
        matches=lambda config: config.get("model_type") == "dimple",
        decoder=_decoder,
        names=NAMES,
        attention="bidirectional",
        shift=1,
        keys=both_ways(QWEN2_KEYS).also(full_attn_mask=(True,)),
        mask=(151666, "<|mask|>"),
        turn_ends={151645: "<|im_end|>"},
        harmless=(*HARMLESS, r"visual\..*", r"img_projector\..*"),
    )
)
