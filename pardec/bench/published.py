"""The shapes that `pardec bench` knows by name, as published configs have them. No torch here."""

from __future__ import annotations

from typing import Any

from pardec.models.errors import ArgumentError, did_you_mean

_SMALL = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12}
_SMALL |= {"intermediate_size": 2048, "vocab_size": 20480, "max_position_embeddings": 2048}

SHAPES: dict[str, dict[str, Any]] = {
    "llada-8b": {
        "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32,
        "mlp_hidden_size": 12288, "vocab_size": 126464, "rope_theta": 500000.0, "max_sequence_length": 4096,
    },
    "dream-7b": {
        "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
    "qwen3-8b": {
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960, "tie_word_embeddings": False,
    },
    "llamagen-xl": {
        "model_type": "llamagen", "gpt_type": "c2i", "dim": 1280, "n_layer": 36, "n_head": 20, "vocab_size": 16384,
        "block_size": 576, "cls_token_num": 1,
    },
    "mar-l": {
        "model_type": "mar", "encoder_embed_dim": 1024, "encoder_depth": 16, "encoder_num_heads": 16,
        "decoder_embed_dim": 1024, "decoder_depth": 16, "decoder_num_heads": 16, "tokens": 256, "token_size": 16,
        "class_num": 1000, "buffer_size": 64, "diffloss_d": 8, "diffloss_w": 1280,
    },
    # The embedded masked model's shape, with more positions.
    "random-2m": {
        "model_type": "Dream", "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 361, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048, "tie_word_embeddings": False,
    },
    "random-100m": {"model_type": "Dream", "tie_word_embeddings": True, **_SMALL},
    "random-100m-ar": {"model_type": "llama", "tie_word_embeddings": True, **_SMALL},
    # LLaDA's vocabulary over a small stack: the cost of logits dominates.
    "random-wide": {
        "model_type": "llada", "d_model": 64, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 128,
        "vocab_size": 126464, "max_sequence_length": 8192,
    },
}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    """The config of a shape. Raises ArgumentError for an unknown one."""
    if name not in SHAPES:
        raise ArgumentError(f"unknown shape {name!r}{did_you_mean(name, SHAPES)}", f"shapes: {', '.join(SHAPES)}")
    return SHAPES[name]
