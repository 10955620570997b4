"""Random EAGLE folders in the published layouts, written from their description."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

# What a config says beside its sizes; others are flags of `write`.
KEYS = ("rms_norm_eps", "rope_theta", "head_dim", "target_hidden_size", "norm_before_residual", "norm_before_fc")
KEYS += ("fc_norm", "norm_output", "tie_word_embeddings", "bias", "qkv_bias", "eagle_config", "rope_scaling")
KEYS += ("sliding_window", "layer_types", "use_sliding_window")
TOP = ("eagle_aux_hidden_state_layer_ids", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm")
TOP += ("norm_output", "tie_word_embeddings")


def write(
    folder: Path,
    layout: str,
    *,
    width: int = 16,
    target: int = 16,
    vocab: int = 40,
    draft: int | None = None,
    heads: int = 2,
    kv_heads: int | None = None,
    inner: int = 24,
    layers: int = 1,
    bias: bool = True,
    attention_bias: bool = False,
    qk_norm: bool = False,
    embedding: bool = False,
    states: int = 3,
    dtype: torch.dtype = torch.float64,
    pickled: bool = False,
    change: Callable[[dict[str, Tensor], dict[str, Any]], None] = lambda tensors, config: None,
    **more: Any,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Writes "eagle", "old", "fspad", "gated", "eagle3" or "speculators"; `change` comes last.

    Returns the tensors and the flat config. The `draft` ids are every third id, then the first of the rest.
    """
    generator = torch.Generator().manual_seed(len(str(sorted(more))) + layers + width)

    def r(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.4

    def scale(size: int) -> Tensor:
        return 1 + r(size) * 0.3

    third = layout in ("eagle3", "speculators")
    t: dict[str, Tensor] = {}
    head_dim, kv = more.get("head_dim", width // heads), kv_heads or heads
    first = {"old": "transformer.", "eagle3": "midlayer."}.get(layout, "layers.0.")
    for index in range(layers):
        stem = first if index == 0 else f"layers.{index}."
        reads = 2 * width if third and index == 0 else width
        for part, count in (("q", heads), ("k", kv), ("v", kv)):
            t[f"{stem}self_attn.{part}_proj.weight"] = r(count * head_dim, reads)
            if attention_bias or more.get("qkv_bias"):
                t[f"{stem}self_attn.{part}_proj.bias"] = r(count * head_dim)
        t[f"{stem}self_attn.o_proj.weight"] = r(width, heads * head_dim)
        if attention_bias:
            t[f"{stem}self_attn.o_proj.bias"] = r(width)
        if qk_norm:
            t |= {f"{stem}self_attn.{part}_norm.weight": scale(head_dim) for part in "qk"}
        t |= {f"{stem}mlp.{part}_proj.weight": r(inner, width) for part in ("gate", "up")}
        t[f"{stem}mlp.down_proj.weight"] = r(2 * width if layout == "fspad" else width, inner)
        t[f"{stem}post_attention_layernorm.weight"] = scale(width)
        if third or index:
            t[f"{stem}input_layernorm.weight"] = scale(width)
    if third:
        t |= {"fc.weight": r(width, states * target), f"{first}hidden_norm.weight": scale(width)}
        t |= {"norm.weight": scale(width)}
        if not more.get("tie_word_embeddings"):
            t["lm_head.weight"] = r(draft or vocab, width)
        if more.get("fc_norm"):
            t |= {f"fc_norm.{index}.weight": scale(target) for index in range(states)}
        if more.get("norm_before_fc"):
            t["input_norm.weight"] = scale(states * target)
        if draft is not None:
            ids = torch.tensor(sorted(sorted(range(vocab), key=lambda i: (i % 3 > 0, i))[:draft]))
            t["d2t"] = ids - torch.arange(draft)
            t["t2d"] = torch.isin(torch.arange(vocab), ids)
    else:
        fusion = {"old": "fusion_fc", "fspad": "fc.fc", "gated": "fc1"}.get(layout, "fc")
        t[f"{fusion}.weight"] = r(width, width if layout == "gated" else 2 * width)
        if bias:
            t[f"{fusion}.bias"] = r(width)
    if layout == "gated":
        t |= {"gate.weight": r(width, 2 * width), "gate.bias": r(width)}
    if layout == "fspad":
        t |= {f"fc.mlp.{part}_proj.weight": r(inner, width) for part in ("gate", "up")}
        t |= {"fc.mlp.down_proj.weight": r(width, inner), "fc.post_attention_layernorm.weight": scale(width)}
    if embedding:
        t["embed_tokens.weight"] = r(vocab, width)
    config = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads, "vocab_size": vocab}
    config |= {"num_key_value_heads": kv, "num_hidden_layers": layers, "hidden_act": "silu"}
    config |= {"model_type": "qwen3" if qk_norm else "llama", **{key: more[key] for key in more if key in KEYS}}
    flat = {**config, "draft_vocab_size": draft or vocab, **more} if third else config
    if layout == "speculators":
        own = {key: value for key, value in config.items() if key not in TOP}
        proposal = {"proposal_type": "greedy", "speculative_tokens": 4}
        published = {"speculators_model_type": "eagle3", "draft_vocab_size": draft or vocab}
        published |= {"transformer_layer_config": own, "speculators_config": {"proposal_methods": [proposal]}}
        published |= {key: more[key] for key in TOP if key in more}
    elif layout == "old":
        published = {"speculators_model_type": "eagle", "transformer_layer_config": config, "fusion_bias": bias}
    else:
        published = {"architectures": ["LlamaForCausalLM"], **flat}
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in t.items()}
    change(tensors, published)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(published))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return t, flat
