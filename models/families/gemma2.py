"""Gemma 2: norms before and after attention and MLP, capped scores and logits, a sliding window in every other layer.

The norms are those of `gemma`, which multiply by 1 + w.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .gemma import GEMMA_KEYS, add_one
from .llama_like import HARMLESS, NAMES, complete, shape

_LAYER = "model.layers.{i}."
GEMMA_NAMES = {
    **NAMES,
    "layers.{i}.post_attn_norm": _LAYER + "post_attention_layernorm.weight",
    "layers.{i}.mlp_norm": _LAYER + "pre_feedforward_layernorm.weight",
    "layers.{i}.post_mlp_norm": _LAYER + "post_feedforward_layernorm.weight",
}

GEMMA2_KEYS = GEMMA_KEYS.without("hidden_act").also(
    "hidden_activation",
    "sliding_window",
    "layer_types",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)


def gemma_shape(config: Config, kind: str, **more: Any) -> DecoderConfig:
    """The stack of Gemma 2 and 3, whose queries are scaled by a number of the config."""
    full, plain = complete(config, kind), shape(config, kind, **more)
    return replace(
        plain,
        embedding_scale=plain.width**0.5,
        post_norms=True,
        query_scale=(plain.head_dim / full.query_pre_attn_scalar) ** 0.5,
        attention_cap=full.attn_logit_softcapping,
        logit_cap=full.final_logit_softcapping,
    )


GEMMA2 = register(
    FamilySpec(
        name="gemma2",
        summary="Gemma 2",
        matches=lambda config: config.get("model_type") == "gemma2",
        decoder=lambda config: gemma_shape(config, "gemma2"),
        names=GEMMA_NAMES,
        attention="causal",
        shift=1,
        keys=GEMMA2_KEYS,
        harmless=HARMLESS,
        convert=add_one,
    )
)
