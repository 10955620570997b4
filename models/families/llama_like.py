"""Shape, rotary scaling and tensor names of Llama, Qwen2, Qwen3 and the diffusion models made from them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ..decoder_config import Activation, AttentionConfig, DecoderConfig
from ..errors import ModelError, one_line
from ..hf.hf_logging import silence
from .base import Config, ConfigKeys, Unsupported, require

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
QUERY_NORM = "model.layers.0.self_attn.q_norm.weight"  # a tensor of stacks that normalise queries and keys
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
HARMLESS = (
    r".*rotary_emb\.inv_freq",  # buffers in old checkpoints; they follow from the config
    r"medusa_head\..*",  # heads of Medusa 1.0 in their target's files: a draft module
)

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_ROTARY = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
# Keys that every Llama-like class of transformers reads. None of these classes reads keys that differ by layer.
LLAMA_LIKE = ConfigKeys(
    frozenset(
        (
            *(*_SIZES, "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "hidden_act"),
            *(*_ROTARY, "max_position_embeddings"),  # the length that scaling starts from where it names none
        )
    ),
    refused={"is_causal": (True, None), "per_layer_config": (None, {})},
)
# Windows that a class ignores: one forward over a text does, and decoding with transformers' KV cache drops what lies
# before the window (`findings/transformers_cache_drops_what_llama_attends_to.sh`).
NO_LAYER_TYPES: dict[str, tuple[Any, ...]] = {"layer_types": (None,), "attention_chunk_size": (None,)}
NO_WINDOWS = {"sliding_window": (None,), **NO_LAYER_TYPES}
QWEN2_KEYS = LLAMA_LIKE.also(*_WINDOWS)
QWEN3_KEYS = QWEN2_KEYS.also("attention_bias")


def both_ways(keys: ConfigKeys) -> ConfigKeys:
    """The key table of a bidirectional model, whose code ignores is_causal and rotates whole heads."""
    return keys.without("is_causal").also(partial_rotary_factor=(None, 1))


def _size(value: Any) -> bool:
    return type(value) is int and value > 0


def _nothing(value: Any) -> bool:
    return value is None


_PLAIN: dict[str, Callable[[Any], bool]] = {  # keys that have to be stated, each with a test of its value
    **dict.fromkeys((*_SIZES, "num_key_value_heads", "max_position_embeddings"), _size),
    "rms_norm_eps": lambda value: type(value) is float,
    "tie_word_embeddings": lambda value: type(value) is bool,
    "hidden_act": lambda value: isinstance(value, str) and value in ACTIVATIONS,
    "rope_parameters": lambda value: (
        isinstance(value, dict) and value == {"rope_type": "default", "rope_theta": value.get("rope_theta")}
    ),
    "rope_theta": lambda value: type(value) in (int, float),
}
_PLAIN_TOO: dict[str, Callable[[Any], bool]] = {  # keys that may be stated, and those without effect
    **dict.fromkeys(("attention_bias", "mlp_bias"), lambda value: type(value) is bool),  # False where it does not
    **dict.fromkeys(("rope_scaling", "layer_types", "sliding_window"), _nothing),
    "head_dim": lambda value: value is None or _size(value),
    "use_sliding_window": lambda value: value is False,
    "max_window_layers": _size,  # without windows, of no effect
}


def _complete_as_it_is(config: Config, kind: str) -> Any | None:
    """The result of `complete` if the config states every value that has a default in its class; else None.

    The first config class of transformers (5.23.0) that a process imports brings PyTorch's compiler and Triton along:
    150 MB, and most of the time that a small model takes to load
    (`findings/transformers_config_imports_the_compiler.sh`).
    """
    if kind not in ("llama", "qwen2", "qwen3") or (kind == "qwen3" and config.get("head_dim") is None):
        return None
    values = dict(config)
    if isinstance(rope := values.setdefault("rope_parameters", None), dict):
        values.setdefault("rope_theta", rope.get("rope_theta"))
    elif rope is None:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": values.get("rope_theta")}
    fits = all(test(values.get(key)) for key, test in _PLAIN.items()) and all(
        key in _PLAIN or (key in _PLAIN_TOO and _PLAIN_TOO[key](value)) for key, value in values.items()
    )
    if not fits or values["rope_parameters"]["rope_theta"] != values["rope_theta"]:
        return None
    heads = values["num_attention_heads"]
    if values["hidden_size"] % heads or (values.get("head_dim") or values["hidden_size"] // heads) % 2:
        return None
    return SimpleNamespace(**values)


def complete(config: Config, kind: str) -> Any:
    """The config as the transformers class `kind` ("llama", ...) completes it. Raises ModelError if that fails."""
    if (stated := _complete_as_it_is(config, kind)) is not None:
        return stated
    from transformers import CONFIG_MAPPING

    settings = {
        key: value for key, value in config.items() if key not in ("model_type", "auto_map", "quantization_config")
    }
    try:
        with silence():
            full = CONFIG_MAPPING[kind].from_dict(settings)
    except Exception as error:  # the classes validate with several kinds of exception
        raise ModelError(
            f"config.json does not describe a {kind} model: {one_line(error)}", "compare it with the published file"
        ) from error
    _check_base(config, full)
    return full


def _check_base(config: Config, full: Any) -> None:
    """Raises ModelError where rope_scaling replaces rope_parameters, so that their base would be lost.

    See `findings/transformers_rope_scaling_discards_the_base.sh`.
    """
    stated, read = config.get("rope_parameters"), getattr(full, "rope_parameters", None) or {}
    base = stated.get("rope_theta") if isinstance(stated, dict) else None
    if config.get("rope_scaling") and base is not None and read.get("rope_theta", base) != base:
        raise ModelError(
            "config.json has rope_scaling and rope_parameters: transformers reads"
            f" rope_scaling alone, not rope_theta={base}",
            "move the keys of rope_scaling into rope_parameters, and take rope_scaling out",
        )


def shape(
    config: Config, kind: str, *, qkv_bias: bool | None = None, qk_norm: bool = False, partial: bool = False
) -> DecoderConfig:
    """The decoder that a config of `kind` ("llama", ...) describes, as its class in transformers reads it.

    Args:
        config: the keys that the family follows; any other would be read as well.
        qkv_bias: whether queries, keys and values have biases; None reads it from the config.
        qk_norm: whether the heads of queries and keys have a norm.
        partial: whether the class rotates the part of a head that `partial_rotary_factor` names.
    """
    full = complete(config, kind)
    key = "hidden_activation" if getattr(full, "hidden_activation", None) else "hidden_act"
    activation = getattr(full, key)
    require({key: activation}, {key: tuple(ACTIVATIONS)})
    biased = bool(getattr(full, "attention_bias", False))
    head_dim = getattr(full, "head_dim", None) or full.hidden_size // full.num_attention_heads
    layer_types = getattr(full, "layer_types", None) or [_type_of_all(full)] * full.num_hidden_layers
    each = tuple(_attention(full, head_dim, layer_type, partial) for layer_type in layer_types)
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
    return "sliding_attention" if getattr(full, "sliding_window", None) is not None else "full_attention"


def _attention(full: Any, head_dim: int, layer_type: str, partial: bool) -> AttentionConfig:
    """The attention of a layer of this type. Raises Unsupported for one that is no softmax over earlier positions."""
    require({"layer_types": layer_type}, {"layer_types": ("full_attention", "sliding_attention")})
    frequencies, scale = rotary(full, head_dim, layer_type, partial=partial)
    return AttentionConfig(frequencies, scale, window(full, layer_type))


def window(full: Any, layer_type: str) -> int | None:
    """The window of a layer of this type. Raises ModelError where it slides, and the config has no window for it."""
    if layer_type != "sliding_attention":
        return None
    width = getattr(full, "sliding_window", None)
    if not isinstance(width, int) or width < 1:
        raise ModelError(
            f"config.json: layer_types has sliding layers, and sliding_window is {width!r}",
            "sliding_window must be the number of positions that such a layer sees, at least 1",
        )
    return width


def rotary(full: Any, head_dim: int, layer_type: str = "", *, partial: bool = False) -> tuple[tuple[float, ...], float]:
    """Rotary frequencies and table scale: default, linear, llama3 and yarn; anything else is Unsupported.

    With `partial`, a part of each head is rotated where the config says so. Raises ModelError where it says so of a
    scaling that transformers computes for that part, in a class that rotates whole heads.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from ..layers.rope import default_frequencies

    scaling = getattr(full, "rope_parameters", None) or getattr(full, "rope_scaling", None) or {}
    of_types = layer_type in (getattr(full, "layer_types", None) or ())  # other classes do not look into such parts
    own = layer_type if of_types and isinstance(scaling.get(layer_type), dict) else None
    scaling = scaling[own] if own else scaling
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    part = scaling.get("partial_rotary_factor")
    if kind == "default":
        theta = scaling.get("rope_theta") or getattr(full, "rope_theta", None) or 10000.0
        rotated = int(head_dim * float(part or 1.0)) if partial else head_dim
        return tuple(default_frequencies(float(theta), rotated).tolist()), 1.0
    if kind not in ("linear", "llama3", "yarn", "proportional"):
        raise Unsupported(
            f"rope_parameters (rope_scaling) of type {kind} are not supported natively (only linear, llama3 and yarn)"
        )
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](full, "cpu", **({"layer_type": own} if own else {}))
    if not partial and 2 * len(frequencies) != head_dim:
        raise ModelError(
            f"config.json: partial_rotary_factor={part!r} with rope_type={kind!r}, in a model that rotates whole heads",
            "leave partial_rotary_factor out",
        )
    return tuple(frequencies.tolist()), float(scale)
