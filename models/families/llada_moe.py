"""LLaDA-MoE: bidirectional, predictions at their own position, softmax scores that are not divided by their sum.

The published config says `model_type: llada`, as that of the dense model does: the architecture tells them apart.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig, ExpertsConfig
from ..errors import ModelError
from .base import Config, FamilySpec, architecture, register
from .experts import EXPERT_NAMES, LAYOUTS, as_flags, whole
from .llama_like import HARMLESS, QWEN3_KEYS, shape

_LAYER = "model.layers.{i}."


def is_llada_moe(config: Config) -> bool:
    """Whether a config is one of LLaDA-MoE, under any of the names that it has had."""
    kind = config.get("model_type")
    sparse = architecture(config).startswith("LLaDAMoE") or bool(config.get("num_experts"))
    return kind in ("lladamoe", "llada_moe") or (kind == "llada" and sparse)


# A head's size is hidden_size over the heads, and norm_topk_prob is not read: the published code sets both.
LLADA_MOE_KEYS = QWEN3_KEYS.without("is_causal", "head_dim").also(
    "dense_intermediate_size",
    "expert_intermediate_size",
    "shared_expert_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "moe_layer_freq",
    "moe_router_enable_expert_bias",
    "qk_layernorm",
    "clip_qkv",
    moe_router_score_function=("softmax", None),
    router_num_group=(None, 1),
    routed_scaling_factor=(None, 1),
)


def _decoder(config: Config) -> DecoderConfig:
    # The class has no rope_theta of use for a config that leaves it out.
    if config.get("rope_theta") is None and config.get("rope_parameters") is None:
        raise ModelError("config.json does not describe a LLaDA-MoE model: rope_theta is missing")
    dense = config.get("dense_intermediate_size") or whole(config, "expert_intermediate_size")
    head_dim = whole(config, "hidden_size") // whole(config, "num_attention_heads")  # always
    settings = {**config, "intermediate_size": dense, "head_dim": head_dim}
    plain = shape(settings, "qwen3", qk_norm=bool(config.get("qk_layernorm", True)), partial=True)
    clip = config.get("clip_qkv")
    experts = ExpertsConfig(
        count=whole(config, "num_experts"),
        top=whole(config, "num_experts_per_tok"),
        width=whole(config, "expert_intermediate_size"),
        sparse=as_flags(config.get("moe_layer_freq") or 1, plain.layers, "moe_layer_freq"),
        normalize=False,  # the published code does not read norm_topk_prob
        bias="weights" if config.get("moe_router_enable_expert_bias") else "",
        shared_width=config.get("shared_expert_intermediate_size") or 0,
    )
    return replace(plain, clip_qkv=None if clip is None else float(clip), experts=experts)


LLADA_MOE = register(
    FamilySpec(
        name="llada_moe",
        summary="LLaDA-MoE",
        matches=is_llada_moe,
        decoder=_decoder,
        names={
            **EXPERT_NAMES,
            "layers.{i}.router_bias": _LAYER + "mlp.expert_bias",
            "layers.{i}.shared_gate_up_weight": tuple(
                _LAYER + f"shared_expert.{part}_proj.weight" for part in ("gate", "up")
            ),
            "layers.{i}.shared_down_weight": _LAYER + "shared_expert.down_proj.weight",
        },
        layouts=LAYOUTS,
        attention="bidirectional",
        shift=0,
        keys=replace(LLADA_MOE_KEYS, defaults={"rms_norm_eps": 1e-5}),
        mask=(156895, "<|mask|>"),
        turn_ends={156900: "<|role_end|>"},
        harmless=HARMLESS,
    )
)
