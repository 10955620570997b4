"""DiffusionGemma's text model: Gemma 4's stack, causal in finished text, bidirectional in a random canvas.

The canvas is 256 tokens, or as many as asked for. The vision tower is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..decoder_config import AttentionConfig, DecoderConfig, ExpertsConfig
from .base import Config, FamilySpec, Unsupported, register, require
from .experts import DOWN, GATE_UP
from .llama_like import ACTIVATIONS, HARMLESS, LLAMA_LIKE, complete, rotary, window

_KIND = "diffusion_gemma_text"
_DECODER, _ENCODER = "model.decoder.", "model.encoder.language_model."
_LAYER = _DECODER + "layers.{i}."
_PER_LAYER = ("head_dim", "num_key_value_heads")
_CONDITIONING = _DECODER + "self_conditioning."

_TEXT_KEYS = LLAMA_LIKE.without("hidden_act", "tie_word_embeddings", "rope_scaling", "per_layer_config").also(
    "hidden_activation",
    "global_head_dim",
    "num_global_key_value_heads",
    "per_layer_config",
    "sliding_window",
    "layer_types",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
    "final_logit_softcapping",
    attention_bias=(False, None),
    use_bidirectional_attention=(None, "vision"),  # for pictures, which are left out
)
_KEYS = replace(_TEXT_KEYS.also("tie_word_embeddings"), inside={"text_config": _TEXT_KEYS})


def _text(config: Config) -> Config:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _attention(full: Any, index: int, layer_type: str) -> AttentionConfig:
    own, slides = full.per_layer_config[index], layer_type == "sliding_attention"
    frequencies, scale = rotary(full, own.head_dim, layer_type, partial=True)
    return AttentionConfig(
        frequencies=frequencies,
        rope_scale=scale,
        window=window(full, layer_type),
        head_dim=own.head_dim,
        kv_heads=own.num_key_value_heads,
        query_scale=own.head_dim**0.5,  # cancels 1 / sqrt(head_dim)
        values_from_keys=not slides,
    )


def _check(text: Config, full: Any) -> None:
    """Refuses what the stack computes in all layers alike, and what its class in transformers cannot read."""
    each = text.get("per_layer_config")
    for own in each.values() if isinstance(each, dict) else each or ():
        for key, value in own.items() if isinstance(own, dict) else ():
            if key not in _PER_LAYER:
                followed = " and ".join(_PER_LAYER)
                raise Unsupported(
                    f"per_layer_config with {key}={value!r} is not supported",
                    f"leave it out: per layer, only {followed} can be set",
                )
    rope = full.rope_parameters or {}
    if lacking := sorted(kind for kind in set(full.layer_types) if not isinstance(rope.get(kind), dict)):
        raise Unsupported(
            f"rope_parameters lacks {lacking[0]}", "it has the parameters of each type of layers, under the type's name"
        )
    if full.sliding_window == 1 and "sliding_attention" in full.layer_types:
        # The cache of transformers 5.23.0 keeps the newest 1 - 1 positions, `[-0:]`: all of them.
        raise Unsupported("sliding_window=1 is ambiguous: transformers reads it in two ways", "write at least 2")


def _decoder(config: Config) -> DecoderConfig:
    text = _text(config)
    full = complete(text, _KIND)
    _check(text, full)
    require(text, {"hidden_activation": tuple(ACTIVATIONS)})
    if not full.num_experts:
        raise Unsupported("DiffusionGemma without experts is not supported natively")
    first = full.per_layer_config[0]  # the stack's, where a layer has none of its own
    each = tuple(_attention(full, index, kind) for index, kind in enumerate(full.layer_types))
    plain = DecoderConfig(
        vocab=full.vocab_size,
        width=full.hidden_size,
        layers=full.num_hidden_layers,
        heads=full.num_attention_heads,
        kv_heads=first.num_key_value_heads,
        head_dim=first.head_dim,
        mlp_width=full.intermediate_size,
        norm_eps=full.rms_norm_eps,
        frequencies=each[0].frequencies,
        each=each,
        qk_norm=True,
        post_norms=True,
        canvas=True,
        tied=bool(config.get("tie_word_embeddings", True)),
        activation=ACTIVATIONS[full.hidden_activation],
        logit_cap=full.final_logit_softcapping,
        experts=ExpertsConfig(
            count=full.num_experts,
            top=full.top_k_experts,
            width=full.moe_intermediate_size,
            sparse=(True,) * full.num_hidden_layers,
        ),
    )
    return replace(plain, embedding_scale=plain.width**0.5)


def _norm(name: str) -> str:
    return f"{_LAYER}{name}_layernorm.weight"


def _twin(name: str) -> str | None:
    """Maps names of shared tensors between encoder and decoder, both ways; scales of layers are not shared."""
    if name.startswith(_CONDITIONING) or name.endswith(".layer_scalar"):
        return None
    for own, other in ((_DECODER, _ENCODER), (_ENCODER, _DECODER)):
        if name.startswith(own):
            return other + name.removeprefix(own)
    return None


DIFFUSION_GEMMA = register(
    FamilySpec(
        name="diffusion_gemma",
        summary="DiffusionGemma (text)",
        matches=lambda config: config.get("model_type") == "diffusion_gemma",
        decoder=_decoder,
        names={
            "embed.weight": "model.decoder.embed_tokens.weight",
            "norm.weight": "model.decoder.norm.weight",
            "head.weight": "lm_head.weight",
            "conditioning.norm": _CONDITIONING + "pre_norm.weight",
            "conditioning.gate_up_weight": tuple(_CONDITIONING + f"{part}_proj.weight" for part in ("gate", "up")),
            "conditioning.down_weight": _CONDITIONING + "down_proj.weight",
            "layers.{i}.attn_norm": _norm("input"),
            "layers.{i}.post_attn_norm": _norm("post_attention"),
            "layers.{i}.q_norm": _LAYER + "self_attn.q_norm.weight",
            "layers.{i}.k_norm": _LAYER + "self_attn.k_norm.weight",
            "layers.{i}.qkv_weight": tuple(_LAYER + f"self_attn.{part}_proj.weight" for part in "qkv"),
            "layers.{i}.out_weight": _LAYER + "self_attn.o_proj.weight",
            "layers.{i}.mlp_norm": _norm("pre_feedforward"),
            "layers.{i}.post_mlp_norm": _norm("post_feedforward"),
            "layers.{i}.gate_up_weight": tuple(_LAYER + f"mlp.{part}_proj.weight" for part in ("gate", "up")),
            "layers.{i}.down_weight": _LAYER + "mlp.down_proj.weight",
            "layers.{i}.dense_post_norm": _norm("post_feedforward").replace("norm.", "norm_1."),
            "layers.{i}.experts_norm": _norm("pre_feedforward").replace("norm.", "norm_2."),
            "layers.{i}.experts_post_norm": _norm("post_feedforward").replace("norm.", "norm_2."),
            "layers.{i}.router_weight": _LAYER + "router.proj.weight",
            "layers.{i}.router_scale": _LAYER + "router.scale",
            "layers.{i}.router_expert_scale": _LAYER + "router.per_expert_scale",
            GATE_UP: _LAYER + "experts.gate_up_proj",
            DOWN: _LAYER + "experts.down_proj",
            "layers.{i}.canvas_scale": _LAYER + "layer_scalar",
            "layers.{i}.text_scale": _ENCODER + "layers.{i}.layer_scalar",
        },
        layouts=(  # of llm-compressor, which quantizes the experts one by one
            {
                GATE_UP: tuple(_LAYER + f"experts.{{e}}.{part}_proj.weight" for part in ("gate", "up")),
                DOWN: _LAYER + "experts.{e}.down_proj.weight",
            },
        ),
        attention="causal-prefix",
        shift=0,
        keys=_KEYS,
        uniform=True,
        block=256,
        twin=_twin,
        harmless=(
            *HARMLESS,
            r"model\.encoder\.language_model\.(?!layers\.\d+\.layer_scalar$).*",  # twins of the decoder's
            r"model\.encoder\.(vision_tower|embed_vision)\..*",
        ),
        positions=lambda config: _text(config).get("max_position_embeddings"),
    )
)
