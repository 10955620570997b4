"""The metadata keys of GGUF files that llama.cpp knows: which are followed, which change nothing, which are refused.

A key that the package gguf knows and no table names is refused unless its value is off (0, false, empty): so are keys
of later versions. Keys that it does not know are those of no reader, and change nothing there either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import ModelError
from .architectures import Architecture
from .header import Header, library

ORIGINAL = "load the original checkpoint, a folder of safetensors, instead"
# Keys of an architecture that `architecture.py` reads.
FOLLOWED = frozenset(
    (
        *("block_count", "context_length", "embedding_length", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base"),
        *("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"),
    )
)
# The same of an architecture with experts, and then its keys with values that leave the output unchanged.
EXPERTS_FOLLOWED = frozenset(("expert_count", "expert_used_count", "expert_feed_forward_length"))
EXPERTS_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "expert_gating_func": (0, 1),  # softmax
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "moe_every_n_layers": (0, 1),
    "interleave_moe_layer_step": (0, 1),
}
# Keys of an architecture without effect on those that are read, always or while their feature is off; of one with
# experts, those whose names speak of them are not ignored.
IGNORED = frozenset(
    (
        *("vocab_size", "tensor_data_layout", "pooling_type", "decoder_start_token_id", "decoder_block_count"),
        *("attention.layer_norm_epsilon", "attention.group_norm_epsilon", "attention.group_norm_groups"),
        *("attention.relative_buckets_count", "attention.sliding_window_pattern", "attention.key_length_swa"),
        *("attention.value_length_swa", "rope.dimension_count_swa", "rope.freq_base_swa"),
        *("rope.scaling.finetuned", "rope.scaling.original_context_length"),
        *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
        *("expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"),
        *("expert_chunk_feed_forward_length", "expert_weights_scale", "expert_weights_norm", "expert_gating_func"),
        *("expert_group_count", "expert_group_used_count", "expert_group_scale", "experts_per_group"),
        *("moe_every_n_layers", "interleave_moe_layer_step", "router_logit_softcapping", "classifier.output_labels"),
    )
)
# Keys of an architecture, with values that leave the output unchanged. Others are off at 0, false or empty.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attention.output_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1, -1),
    "rope.scaling.yarn_ext_factor": (0, -1),
    "attention.temperature_scale": (0,),
}
_OF_EXPERTS = ("expert", "moe_", "interleave_moe", "router_")
_TOKENIZER = "tokenizer."
TOKENIZER_FOLLOWED = frozenset(
    (
        *("ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template"),
        *("ggml.bos_token_id", "ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id"),
        *("ggml.unknown_token_id", "ggml.padding_token_id", "ggml.mask_token_id"),
        *("ggml.fim_pad_token_id", "ggml.fim_rep_token_id", "ggml.fim_sep_token_id"),
        *("ggml.add_bos_token", "ggml.add_eos_token"),
    )
)
# Keys of tokenizers other than byte-level BPE, of filling in the middle, and templates that a caller has to name.
TOKENIZER_IGNORED = frozenset(
    (
        *("ggml.scores", "ggml.token_type_count", "ggml.seperator_token_id", "ggml.add_space_prefix"),
        *("ggml.remove_extra_whitespaces", "ggml.precompiled_charsmap", "huggingface.json", "rwkv.world"),
        *("chat_templates", "ggml.prefix_token_id", "ggml.suffix_token_id", "ggml.middle_token_id"),
        *("ggml.fim_pre_token_id", "ggml.fim_suf_token_id", "ggml.fim_mid_token_id"),
    )
)
_OTHERS_IGNORED = ("general.", "split.", "imatrix.", "clip.", "adapter.", "quantize.")
_SHIFT, _CAUSAL = "diffusion.shift_logits", "attention.causal"


def known_keys(header: Header) -> frozenset[str]:
    """Every key that the package gguf knows; keys of architectures have the form `{arch}.name`."""
    names, groups = {"{arch}.rope.scale_linear"}, [library(header.file).constants.Keys]
    while groups:
        for value in vars(groups.pop()).values():
            if isinstance(value, type):
                groups.append(value)
            elif isinstance(value, str) and "." in value and not value.startswith("gguf."):
                names.add(value)
    return frozenset(names)


def check_keys(header: Header, name: str, architecture: Architecture) -> None:
    """Raises ModelError, naming it, for a key that changes what llama.cpp computes and is not followed here."""
    known = known_keys(header)
    followed, neutral = FOLLOWED | IGNORED, NEUTRAL
    if architecture.expert_width:
        of_experts = {own for own in IGNORED if own.startswith(_OF_EXPERTS)}
        followed = (followed - of_experts) | EXPERTS_FOLLOWED
        neutral = {**NEUTRAL, **EXPERTS_NEUTRAL, "expert_weights_norm": (architecture.normalizes,)}
    for key, value in header.metadata.items():
        if key.startswith(_OTHERS_IGNORED):
            continue
        own = key.removeprefix(f"{name}.")
        if key == _SHIFT:
            _check_flag(header, key, value, architecture.shift)
        elif key.startswith(_TOKENIZER):
            own = key.removeprefix(_TOKENIZER)
            if own in TOKENIZER_FOLLOWED | TOKENIZER_IGNORED or key not in known:
                continue
            if _on(value):
                raise _refusal(header, key, value)
        elif own != key and own == _CAUSAL:
            _check_flag(header, key, value, architecture.causal)
        elif own != key and own in followed:
            continue
        elif (f"{{arch}}.{own}" in known if own != key else key in known) and not _neutral(neutral.get(own), value):
            raise _refusal(header, key, value)


def _neutral(values: tuple[Any, ...] | None, value: Any) -> bool:
    if values is not None:
        return isinstance(value, int | float) and any(np.float32(value) == each for each in values)
    return not _on(value)


def _on(value: Any) -> bool:
    return any(map(_on, value)) if isinstance(value, list) else bool(value)


def _check_flag(header: Header, key: str, value: Any, wanted: bool | None) -> None:
    """Raises ModelError unless the flag `value` is a bool, and equal to `wanted` where that is not None."""
    if not isinstance(value, bool) or (wanted is not None and value != wanted):
        raise ModelError(
            f"{header.file}: {key} is {str(value)[:80]}, and models of this architecture need {wanted}",
            "the file contradicts its architecture: convert the original again",
        )


def _refusal(header: Header, key: str, value: Any) -> ModelError:
    text = str(np.float32(value)) if isinstance(value, float) else repr(value)[:80]
    return ModelError(f"{header.file}: {key} is {text}: not supported", ORIGINAL)
