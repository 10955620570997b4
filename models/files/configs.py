"""Checks of a config.json before it is used: types of its fields, and sizes that the weight files can have.

A config is used before weights are read, so a size that no tensor has could allocate or loop without bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import ModelError, PardecError, one_line
from ..families.base import BLOCK_KEYS
from .weights import Published

_LAYERS = frozenset(
    (
        *("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_depth", "decoder_depth", "diffloss_d"),
        *("depth", "num_res_blocks", "fm_head_layers"),  # keys of the parts of Janus that see and draw
    )
)
_SIZES = frozenset(
    (
        *("hidden_size", "d_model", "dim", "n_embd", "encoder_embed_dim", "decoder_embed_dim", "diffloss_w"),
        *("intermediate_size", "moe_intermediate_size", "mlp_hidden_size", "ffn_hidden", "n_inner", "multiple_of"),
        *("head_dim", "num_attention_heads", "num_key_value_heads", "n_heads", "n_head", "n_kv_heads", "n_kv_head"),
        *("vocab_size", "embedding_size", "class_num", "buffer_size", "token_size"),
        *("img_size", "fm_head_dim", "latent_channels", "latent_patch_size", "latent_size"),
        *("num_experts", "num_local_experts", "n_routed_experts", "cls_token_num", *BLOCK_KEYS),
    )
)
_WHOLE = frozenset(
    (
        *("bos_token_id", "pad_token_id", "mask_token_id", "text_mask_token_id", "max_position_embeddings"),
        "max_sequence_length",
        *("sliding_window", "n_positions", "image_seq_length"),
    )
)
_POSITIVE = frozenset(
    (
        *("rope_theta", "rope_base", "rms_norm_eps", "norm_eps", "layer_norm_eps", "mlp_ratio", "factor"),
        *("partial_rotary_factor", "ffn_dim_multiplier", "low_freq_factor", "high_freq_factor", "attention_factor"),
        "routed_scaling_factor",
    )
)
_KINDS: Mapping[str, tuple[type, str]] = {
    "rope_scaling": (dict, "an object"),
    "rope_parameters": (dict, "an object"),
    "architectures": (list, "a list"),
    "model_type": (str, "text"),
    "vq_config": (dict, "an object"),
    "speculators_model_type": (str, "text"),
    **dict.fromkeys(("eagle_config", "dflash_config", "dspark_config"), (dict, "an object")),
    **dict.fromkeys(("norm_before_residual", "norm_before_fc", "norm_output"), (bool, "true or false")),
    **dict.fromkeys(("fc_norm", "use_aux_hidden_state", "sample_from_anchor"), (bool, "true or false")),
    **dict.fromkeys(("use_qkv_bias", "use_qk_norm", "qk_norm", "add_qkv_bias", "causal_attn"), (bool, "true or false")),
    **dict.fromkeys(("moe_router_enable_expert_bias", "anchor_eosbos", "clean_captions"), (bool, "true or false")),
}
_CHEAP = 2**16  # sizes up to this are harmless; published configs may hold unused ones
_FEW = 256  # layers that may be built before missing tensors are noticed
_UNKNOWN = 10_000, 2**24  # layers and sizes, without weights to compare with


def check_config(config: Mapping[str, Any], where: str, published: Mapping[str, Published] | None = None) -> None:
    """Checks a config and the ones inside it.

    Args:
        config: of a model, or of its generation.
        where: the file it is from, for errors.
        published: the tensors of its weights, with which sizes are compared.

    Raises:
        ModelError: names a field of the wrong type, or a size that the tensors cannot have.
    """
    layers, sizes = _UNKNOWN
    if published:
        layers = max(_FEW, len(published))
        sizes = max([_CHEAP, *(torch.Size(entry.shape).numel() for entry in published.values())])
    for key, value in config.items():
        if isinstance(value, dict) and key != "vocabulary_map":  # whose keys are tokens
            check_config(value, where, published)
        if key == "eos_token_id" and value == []:  # no end token
            continue
        for entry in value if isinstance(value, list) and value else [value]:
            if value is not None and (problem := _problem(key, entry, value, layers, sizes)):
                raise ModelError(f"{where}: {key} is {entry!r}, {problem}", "compare it with the published file")


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns errors of the code inside, which interprets a config, into a ModelError with the model's name."""
    try:
        yield
    except PardecError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise ModelError(f"the configuration of {name} does not describe a model: {problem}") from error


def _problem(key: str, entry: Any, value: Any, layers: int, sizes: int) -> str:
    """The problem with a key's value, or with an entry of it if it is a list; empty if there is none."""
    if key in _KINDS:
        kind, description = _KINDS[key]
        return "" if isinstance(value, kind) else f"and {description} is needed"
    if isinstance(value, list) and (key in _WHOLE or key in _POSITIVE):
        return "and one number is needed"
    if key in _LAYERS or key in _SIZES or key in _WHOLE or key == "eos_token_id":
        if not isinstance(entry, int) or isinstance(entry, bool):
            return "and a whole number is needed"
        if key in _LAYERS and not 0 <= entry <= layers:
            return "and the weights do not hold as many" if entry > 0 else "and a number of layers is needed"
        if key in _SIZES and not 0 <= entry <= sizes:
            return "and no tensor of the weights is as large" if entry > 0 else "and a size is needed"
        return "" if abs(entry) < 2**63 else "which is too large"
    if key in _POSITIVE:
        number = isinstance(entry, int | float) and not isinstance(entry, bool)
        if not number or not math.isfinite(entry) or not 0 <= entry <= 1e30:
            return "and a positive number is needed"
    return ""
