"""The architectures that are read from GGUF files: how each one's config and tensors are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LLAMA_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_EXPERT_PARTS = {
    **{part: name for part, name in _LLAMA_PARTS.items() if name.partition(".")[0] != "mlp"},
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_LLADA_PARTS = {f"attn_{part}": f"{part}_proj" for part in "qkv"} | {
    "attn_norm": "attn_norm",
    "ffn_norm": "ff_norm",
    "attn_output": "attn_out",
    "ffn_gate": "ff_proj",
    "ffn_up": "up_proj",
    "ffn_down": "ff_out",
}
_LLADA_OUTER = {"token_embd": "wte", "output_norm": "ln_f", "output": "ff_out"}
# LLaDA's keys by transformers' keys, then the constants that its published configs have in addition to sizes.
_LLADA_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "rms_norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_sequence_length",
    "tie_word_embeddings": "weight_tying",
}
_LLADA_SETTINGS = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How models of an architecture are published."""

    class_name: str
    model_type: str
    layer: str = "model.layers.{i}."
    parts: Mapping[str, str] = field(default_factory=lambda: _LLAMA_PARTS)
    outer: Mapping[str, str] = field(default_factory=lambda: _LLAMA_OUTER)
    interleaved: bool = False  # whether rows of queries and keys are interleaved in the file
    query_norms: bool = False
    qkv_bias: bool = False
    optional_biases: bool = False  # whether the tensors decide which biases exist
    keys: Mapping[str, str] = field(default_factory=dict)  # config keys that differ from transformers'
    settings: Mapping[str, Any] = field(default_factory=dict)
    expert_width: str = ""  # config key of the inner width of an expert; "": an MLP without experts
    normalizes: bool = False  # whether the weights of a token's experts are divided by their sum
    causal: bool = True  # a position sees those before it alone
    shift: bool | None = None  # masked models: whether a token is predicted at the position before it
    scaled_frequencies: bool = False  # a tensor may divide the rotary frequencies, as Llama 3's does

    def published(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The published form of a config with transformers' keys."""
        if not self.keys:
            return {**config, **self.settings}
        rope = config["rope_parameters"]
        renamed = {own: config[name] for name, own in self.keys.items()}
        kinds = {"architectures": config["architectures"], "model_type": self.model_type}
        return {**kinds, **renamed, "rope_theta": rope["rope_theta"], **self.settings}


# By the name in the file.
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", interleaved=True, optional_biases=True, scaled_frequencies=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", qkv_bias=True),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", query_norms=True),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        parts=_EXPERT_PARTS,
        query_norms=True,
        settings={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        expert_width="moe_intermediate_size",
        normalizes=True,
    ),
    "dream": Architecture("DreamModel", "Dream", qkv_bias=True, causal=False, shift=True),
    "llada": Architecture(
        "LLaDAModelLM",
        "llada",
        layer="model.transformer.blocks.{i}.",
        parts=_LLADA_PARTS,
        outer={name: f"model.transformer.{own}" for name, own in _LLADA_OUTER.items()},
        interleaved=True,
        keys=_LLADA_KEYS,
        settings=_LLADA_SETTINGS,
        causal=False,
        shift=False,
    ),
    "llada-moe": Architecture(
        "LLaDAMoEModelLM",
        "llada_moe",
        parts=_EXPERT_PARTS,
        query_norms=True,
        settings={"qk_layernorm": True},
        expert_width="expert_intermediate_size",
        causal=False,
        shift=False,
    ),
}
