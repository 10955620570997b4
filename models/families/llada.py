"""LLaDA-8B and LLaDA-1.5: bidirectional, predictions at their own position, OLMo's config keys and tensor names."""

from __future__ import annotations

from ..decoder_config import DecoderConfig
from ..errors import ModelError
from .base import Config, ConfigKeys, FamilySpec, architecture, register
from .llada_moe import is_llada_moe

_BLOCK = "model.transformer.blocks.{i}."
_DRAW = ("LLaDAForMultiModalGeneration", "MMadaModelLM")  # separate families, with codes of images as well

# The published code is OLMo's: settings other than those of the block that was trained are refused.
LLADA_KEYS = ConfigKeys(
    frozenset(
        (
            *("vocab_size", "embedding_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "multi_query_attention"),
            *("mlp_hidden_size", "mlp_ratio", "rms_norm_eps", "rope_theta", "include_qkv_bias", "weight_tying"),
        )
    ),
    refused={
        "block_type": ("llama",),
        "activation_type": ("silu",),
        "layer_norm_type": ("rms",),
        "rope": (True,),
        "alibi": (False,),
        "attention_layer_norm": (False,),
        "input_emb_norm": (False,),
        "scale_logits": (False,),
        "include_bias": (False,),
        "bias_for_layer_norm": (False, None),
        "layer_norm_with_affine": (True,),
        "clip_qkv": (None,),
    },
)


def decoder(config: Config) -> DecoderConfig:
    try:
        width, heads = int(config["d_model"]), int(config["n_heads"])
        layers, vocab = int(config["n_layers"]), int(config.get("embedding_size") or config["vocab_size"])
    except KeyError as error:
        raise ModelError(f"config.json does not describe a LLaDA model: {error.args[0]} is missing") from None
    from ..layers.rope import default_frequencies

    shares, keys = config.get("multi_query_attention"), config.get("n_kv_heads")
    by_flag = 1 if shares else heads
    if None not in (shares, keys) and keys != by_flag:
        raise ModelError(
            f"config.json has n_kv_heads={keys}, and multi_query_attention={shares} means {by_flag}",
            "set multi_query_attention to null, or leave n_kv_heads out",
        )
    return DecoderConfig(
        vocab=vocab,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=int(keys or by_flag),
        head_dim=width // heads,
        mlp_width=int(config.get("mlp_hidden_size") or config.get("mlp_ratio", 4) * width),
        norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        frequencies=tuple(default_frequencies(float(config.get("rope_theta", 10000.0)), width // heads).tolist()),
        qkv_bias=bool(config.get("include_qkv_bias")),
        tied=bool(config.get("weight_tying")),
    )


LLADA = register(
    FamilySpec(
        name="llada",
        summary="LLaDA-8B, LLaDA-1.5 (dense)",
        matches=lambda config: (
            config.get("model_type") == "llada" and not is_llada_moe(config) and architecture(config) not in _DRAW
        ),
        decoder=decoder,
        names={
            "embed.weight": "model.transformer.wte.weight",
            "norm.weight": "model.transformer.ln_f.weight",
            "head.weight": "model.transformer.ff_out.weight",
            "layers.{i}.attn_norm": _BLOCK + "attn_norm.weight",
            "layers.{i}.mlp_norm": _BLOCK + "ff_norm.weight",
            "layers.{i}.qkv_weight": tuple(_BLOCK + f"{part}_proj.weight" for part in "qkv"),
            "layers.{i}.qkv_bias": tuple(_BLOCK + f"{part}_proj.bias" for part in "qkv"),
            "layers.{i}.out_weight": _BLOCK + "attn_out.weight",
            "layers.{i}.gate_up_weight": (_BLOCK + "ff_proj.weight", _BLOCK + "up_proj.weight"),
            "layers.{i}.down_weight": _BLOCK + "ff_out.weight",
        },
        attention="bidirectional",
        shift=0,
        keys=LLADA_KEYS,
        mask=(126336, "<|mdm_mask|>"),
        turn_ends={126348: "<|eot_id|>"},
        start=(126080, "<|startoftext|>"),
        own_head=False,
        assumed={
            "rope": "positions that are not rotated",
            "layer_norm_type": "LayerNorm instead of RMSNorm",
            "weight_tying": "a head that is the embedding",
        },
        harmless=(r".*rotary_emb\.inv_freq",),
        positions=lambda config: config.get("max_sequence_length"),
    )
)
