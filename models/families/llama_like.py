"""Shape, rotary scaling and tensor names of Llama, Qwen2, Qwen3 and the diffusion models made from them."""

from __future__ import annotations

from typing import Any

from ..decoder_config import Activation, AttentionConfig, DecoderConfig
from ..errors import ModelError, one_line
from ..hf.hf_logging import silence
from .base import Config, Unsupported, require

_LAYER = "model.layers.{i}."
NAMES: dict[str, str | tuple[str, ...]] = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{i}.attn_norm": _LAYER + "input_layernorm.weight",
    "layers.{i}.mlp_norm": _LAYER + "post_attention_layernorm.weight",
    "layers.{i}.q_norm": _LAYER + "self_attn.q_norm.weight",
    "layers.{i}.k_norm": _LAYER + "self_attn.k_norm.weight",
    "layers.{i}.qkv_weight": tuple(_LAYER + f"self_attn.{part}_proj.weight" for part in "qkv"),
    "layers.{i}.qkv_bias": tuple(_LAYER + f"self_attn.{part}_proj.bias" for part in "qkv"),
    "layers.{i}.out_weight": _LAYER + "self_attn.o_proj.weight",
    "layers.{i}.out_bias": _LAYER + "self_attn.o_proj.bias",
    "layers.{i}.gate_up_weight": (_LAYER + "mlp.gate_proj.weight", _LAYER + "mlp.up_proj.weight"),
    "layers.{i}.gate_up_bias": (_LAYER + "mlp.gate_proj.bias", _LAYER + "mlp.up_proj.bias"),
    "layers.{i}.down_weight": _LAYER + "mlp.down_proj.weight",
    "layers.{i}.down_bias": _LAYER + "mlp.down_proj.bias",
}
QUERY_NORM = "model.layers.0.self_attn.q_norm.weight"  # of stacks that normalise queries and keys
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
HARMLESS = (
    r".*rotary_emb\.inv_freq",  # buffers in old checkpoints; they follow from the config
    r"medusa_head\..*",  # heads of Medusa 1.0 beside their target: a draft module
)


def complete(config: Config, kind: str) -> Any:
    """The config as the transformers class `kind` ("llama", ...) completes it. Raises ModelError if it will not."""
    from transformers import CONFIG_MAPPING

    settings = {
        key: value for key, value in config.items() if key not in ("model_type", "auto_map", "quantization_config")
    }
    try:
        with silence():
            return CONFIG_MAPPING[kind].from_dict(settings)
    except Exception as error:  # the classes validate with several kinds of exception
        raise ModelError(f"config.json does not describe a {kind} model: {one_line(error)}") from error


def shape(config: Config, kind: str, *, qkv_bias: bool | None = None, qk_norm: bool = False) -> DecoderConfig:
    """The decoder that a config of `kind` ("llama", ...) describes; `qkv_bias` None reads it from the config."""
    full = complete(config, kind)
    activation = getattr(full, "hidden_activation", None) or full.hidden_act
    require({"hidden_act": activation}, {"hidden_act": tuple(ACTIVATIONS)})
    biased = bool(getattr(full, "attention_bias", False))
    head_dim = getattr(full, "head_dim", None) or full.hidden_size // full.num_attention_heads
    layer_types = getattr(full, "layer_types", None) or [_type_of_all(full)] * full.num_hidden_layers
    each = tuple(_attention(full, config, head_dim, layer_type) for layer_type in layer_types)
    return DecoderConfig(
        vocab=full.vocab_size,
        width=full.hidden_size,
        layers=full.num_hidden_layers,
        heads=full.num_attention_heads,
        kv_heads=full.num_key_value_heads or full.num_attention_heads,
        head_dim=head_dim,
        mlp_width=full.intermediate_size,
        norm_eps=full.rms_norm_eps,
        frequencies=each[0].frequencies,
        rope_scale=each[0].rope_scale,
        window=each[0].window,
        each=each if len(set(each)) > 1 else (),
        qkv_bias=biased if qkv_bias is None else qkv_bias,
        out_bias=biased if qkv_bias is None else False,
        mlp_bias=bool(getattr(full, "mlp_bias", False)),
        qk_norm=qk_norm,
        tied=bool(full.tie_word_embeddings),
        activation=ACTIVATIONS[activation],
    )


def _type_of_all(full: Any) -> str:
    """The type of every layer where the config names none."""
    return "sliding_attention" if getattr(full, "sliding_window", None) else "full_attention"


def _attention(full: Any, config: Config, head_dim: int, layer_type: str) -> AttentionConfig:
    """The attention of a layer of this type. Raises Unsupported for one that is no softmax over earlier positions."""
    require({"layer_types": layer_type}, {"layer_types": ("full_attention", "sliding_attention")})
    frequencies, scale = rotary(full, config, head_dim, layer_type)
    window = int(full.sliding_window) if layer_type == "sliding_attention" and full.sliding_window else None
    return AttentionConfig(frequencies, scale, window)


def rotary(full: Any, config: Config, head_dim: int, layer_type: str = "") -> tuple[tuple[float, ...], float]:
    """Rotary frequencies and table scale: default, linear, llama3 and yarn; anything else is Unsupported."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from ..rope import default_frequencies

    scaling = getattr(full, "rope_parameters", None) or getattr(full, "rope_scaling", None) or {}
    own = layer_type if isinstance(scaling.get(layer_type), dict) else None
    scaling = scaling[own] if own else scaling
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if "mrope_section" in scaling or kind == "mrope":
        raise Unsupported("rope_scaling of type mrope is not supported natively")
    if kind == "default":
        theta = scaling.get("rope_theta") or getattr(full, "rope_theta", None) or 10000.0
        rotated = int(
            head_dim * float(scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
        )
        return tuple(default_frequencies(float(theta), rotated).tolist()), 1.0
    if kind not in ("linear", "llama3", "yarn", "proportional"):
        raise Unsupported(f"rope_scaling of type {kind} is not supported natively (only linear, llama3 and yarn)")
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](full, "cpu", **({"layer_type": own} if own else {}))
    return tuple(frequencies.tolist()), float(scale)
