"""LLaDA2.0 to 2.2, DMax: block-causal, predictions at their own position, sigmoid scores chosen within groups.

LLaDA2.0 (arXiv:2512.15745), LLaDA2.1 (arXiv:2602.08676). Their configs are the same: how a checkpoint is decoded, with
edits or without, is the user's choice. The config of LLaDA2.2 has an `expert_capacity`, by which a block's tokens share
a pool of experts, and groups that its pool takes the place of.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig, ExpertsConfig
from .base import Config, FamilySpec, architecture, register
from .experts import EXPERT_NAMES, LAYOUTS, whole
from .llama_like import HARMLESS, QWEN3_KEYS, shape

_LAYER = "model.layers.{i}."

# Whatever norm_topk_prob says, the published code normalises where more than one expert is chosen.
_KEYS = QWEN3_KEYS.without("is_causal", "attention_bias").also(
    "use_qkv_bias",
    "use_qk_norm",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_shared_experts",
    "first_k_dense_replace",
    "routed_scaling_factor",
    "moe_router_enable_expert_bias",
    "n_group",
    "topk_group",
    "expert_capacity",
    "block_topk_experts",
    "block_size",
    score_function=("sigmoid",),
    use_bias=(False,),
    use_rmsnorm=(True,),
    norm_head=(False, None),
    using_split_qkv_in_self_attention=(False, None),
    use_sliding_window=(False, None),
)
# Of the authors' class, where they are not Qwen3's.
_DEFAULTS = {
    "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16384,
}  # fmt: skip


def _decoder(config: Config) -> DecoderConfig:
    biased = bool(config.get("use_qkv_bias"))
    head_dim = config.get("head_dim") or whole(config, "hidden_size") // whole(config, "num_attention_heads")
    settings = {**config, "head_dim": head_dim}
    plain = shape(settings, "qwen3", qkv_bias=biased, qk_norm=bool(config.get("use_qk_norm", True)), partial=True)
    width, first = whole(config, "moe_intermediate_size"), whole(config, "first_k_dense_replace", 0)
    capacity, per_block = (
        0 if config.get(key) is None else whole(config, key) for key in ("expert_capacity", "block_topk_experts")
    )
    pool = capacity or per_block
    experts = ExpertsConfig(
        count=whole(config, "num_experts"),
        top=whole(config, "num_experts_per_tok"),
        width=width,
        sparse=tuple(layer >= first for layer in range(plain.layers)),
        scores="sigmoid",
        normalize=whole(config, "num_experts_per_tok") > 1,
        scale=float(config.get("routed_scaling_factor") or 1.0),
        bias="choice" if config.get("moe_router_enable_expert_bias", True) else "",
        groups=1 if capacity else config.get("n_group") or 1,
        top_groups=1 if capacity else config.get("topk_group") or 1,
        shared_width=width * (config.get("num_shared_experts") or 0),
        pool=pool,
        pool_block=(config.get("block_size") or 32) if pool else 0,
    )
    return replace(plain, experts=experts)


LLADA2 = register(
    FamilySpec(
        name="llada2",
        summary="LLaDA2.0 to 2.2, DMax",
        matches=lambda config: (
            architecture(config) == "LLaDA2MoeModelLM"
            or config.get("model_type") in ("llada2_moe", "llada2_moe_veomni", "llada21_moe")
        ),
        decoder=_decoder,
        names={
            **EXPERT_NAMES,
            "embed.weight": "model.word_embeddings.weight",
            "layers.{i}.q_norm": _LAYER + "attention.query_layernorm.weight",
            "layers.{i}.k_norm": _LAYER + "attention.key_layernorm.weight",
            "layers.{i}.qkv_weight": _LAYER + "attention.query_key_value.weight",
            "layers.{i}.qkv_bias": _LAYER + "attention.query_key_value.bias",
            "layers.{i}.out_weight": _LAYER + "attention.dense.weight",
            "layers.{i}.router_bias": _LAYER + "mlp.gate.expert_bias",
            "layers.{i}.shared_gate_up_weight": tuple(
                _LAYER + f"mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up")
            ),
            "layers.{i}.shared_down_weight": _LAYER + "mlp.shared_experts.down_proj.weight",
        },
        layouts=LAYOUTS,
        attention="block-causal",
        shift=0,
        keys=replace(_KEYS, defaults=_DEFAULTS),
        mask=(156895, "<|mask|>"),
        turn_ends={156900: "<|role_end|>"},
        block=32,
        harmless=HARMLESS,
    )
)
