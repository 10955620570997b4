"""Nemotron-Labs-Diffusion: finished text is causal, the active block sees all of it and itself.

One checkpoint, three modes by the mask alone: `attention="causal"` loads it as an autoregressive model, whose
predictions are shifted by one. A block's first token comes from the causal forward that stores what is before it.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, both_ways, shape


def _decoder(config: Config) -> DecoderConfig:
    rope = config.get("rope_parameters") or {}
    base = {} if "rope_theta" in rope else {"rope_theta": 1e6}  # of the authors' class, as the defaults below
    plain = shape(base | config, "llama", qkv_bias=False)
    beta, original = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
    return replace(plain, query_growth=(float(beta), int(original)) if beta and original else None)


def _renamed(stem: str) -> str:
    return stem.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head")


NEMOTRON = register(
    FamilySpec(
        name="nemotron",
        summary="Nemotron-Labs-Diffusion",
        matches=lambda config: config.get("model_type") == "nemotron_labs_diffusion",
        decoder=_decoder,
        names={
            name: _renamed(stems) if isinstance(stems, str) else tuple(map(_renamed, stems))
            for name, stems in NAMES.items()
        },
        attention="causal-prefix",
        shift=0,
        keys=replace(
            both_ways(LLAMA_LIKE).also(
                "sliding_window",
                "layer_types",
                attention_bias=(None, False),
                mlp_bias=(None, False),
                dlm_paradigm=("bidirectional", "block_diff", None),
            ),
            defaults={
                "rms_norm_eps": 1e-5,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 262144,
            },
        ),
        mask=(100, "<SPECIAL_100>"),
        harmless=(*HARMLESS, r".*self_attn\.[kv]_scale"),
    )
)
