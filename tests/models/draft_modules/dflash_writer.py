"""Random checkpoints in the published layouts of DFlash and DSpark, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

MASK = 4


def write(
    folder: Path,
    *,
    vocab: int = 5,
    width: int = 16,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    block: int = 5,
    mask: int = MASK,
    taps: tuple[int, ...] = (0, 2, 3),
    markov: str = "",
    rank: int = 6,
    confidence: str = "",
    reduced: tuple[int, ...] = (),
    selected: int = 0,
    group: int = 4,
    own_head: bool = False,
    nested: bool = True,
    qk_norm: bool = True,
    scale: float = 0.4,
    seed: int = 0,
    leave_out: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float64,
    **more: Any,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Writes the folder; returns its tensors and config. `markov` makes a DSpark; `confidence` is "state" or "token".

    `selected` makes a DFlash 2 whose selector scores that many ids per position.
    """
    drawn = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=drawn, dtype=torch.float64) * scale).to(dtype)

    def near_one(size: int) -> Tensor:
        return 1 + noise(size) / 4

    drafted = len(reduced) or vocab
    tensors = {
        "fc.weight": noise(width, len(taps) * width),
        "hidden_norm.weight": near_one(width),
        "norm.weight": near_one(width),
    }
    for index in range(layers):
        attention, mlp = f"layers.{index}.self_attn.", f"layers.{index}.mlp."
        tensors |= {
            attention + "q_proj.weight": noise(heads * dim, width),
            attention + "k_proj.weight": noise(kv_heads * dim, width),
            attention + "v_proj.weight": noise(kv_heads * dim, width),
            attention + "o_proj.weight": noise(width, heads * dim),
            mlp + "gate_proj.weight": noise(24, width),
            mlp + "up_proj.weight": noise(24, width),
            mlp + "down_proj.weight": noise(width, 24),
            f"layers.{index}.input_layernorm.weight": near_one(width),
            f"layers.{index}.post_attention_layernorm.weight": near_one(width),
        }
        if qk_norm:
            tensors |= {attention + "q_norm.weight": near_one(dim), attention + "k_norm.weight": near_one(dim)}
        if selected:
            for part in ("attention", "mlp"):
                stem = f"layers.{index}.{part}_conv."
                tensors[stem + "base_kernel"] = noise(2, 2, width) + torch.tensor([1, 0], dtype=dtype)[:, None]
                tensors[stem + "kernel_projection.weight"] = noise(4 * width // group, width)
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "intermediate_size": 24,
        "rms_norm_eps": 1e-5, "rope_theta": 300.0, "vocab_size": vocab, "hidden_act": "silu",
    }  # fmt: skip
    method: dict[str, Any] = {"mask_token_id": mask, "target_layer_ids": list(taps)}
    if selected:
        config["architectures"] = ["DFlash2DraftModel"]
        method |= {"conv_kernel_size": 2, "conv_group_size": group, "selector_rank": rank, "selector_top_k": selected}
        tensors["candidate_selector.hidden_projection.weight"] = noise(rank, width)
        for name in ("predecessor", "successor"):
            tensors[f"candidate_selector.{name}_codebook"] = noise(vocab, rank) * 3
    if markov or confidence:
        config |= {"architectures": ["Qwen3DSparkModel"], "num_anchors": 512, "markov_head_type": markov or "vanilla"}
        config |= {"markov_rank": rank if markov else 0, "enable_confidence_head": bool(confidence)}
        tensors |= {"embed_tokens.weight": noise(vocab, width), "lm_head.weight": noise(drafted, width)}
        nested = False
    if markov:
        tensors["markov_head.markov_w1.weight"] = noise(vocab, rank) * 3
        tensors["markov_head.markov_w2.weight"] = noise(drafted, rank) * 3
    if markov == "gated":
        tensors["markov_head.gate_proj.weight"] = noise(rank, width + rank)
        tensors["markov_head.gate_proj.bias"] = noise(rank)
    if markov == "rnn":
        tensors["markov_head.joint_proj.weight"] = noise(3 * rank, 2 * rank + width)
        tensors["markov_head.joint_proj.bias"] = noise(3 * rank)
    if confidence:
        tensors["confidence_head.proj.weight"] = noise(1, width + (rank if confidence == "token" else 0))
        tensors["confidence_head.proj.bias"] = noise(1)
    if reduced:
        config["draft_vocab_size"] = len(reduced)
        ids = torch.tensor(reduced)
        tensors["d2t"] = ids - torch.arange(len(reduced))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    if own_head:
        tensors["lm_head.weight"] = noise(drafted, width)
    config |= {"block_size": block} | ({"dflash_config": method} if nested else method) | more
    tensors = {name: tensor for name, tensor in tensors.items() if name not in leave_out}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return tensors, config
