"""Kangaroo's adapter from the paper and the published tensors: no cache, one text, one token after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def adapter(
    width: int, *, heads: int, kv_heads: int, head_dim: int, layers: int = 1, seed: int = 0
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Random tensors under the published names, and a config."""
    random = np.random.RandomState(seed)

    def values(*shape: int, scale: float = 0.3) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape) * scale).float()

    tensors = {"norm.weight": 1 + values(width)}
    for layer in range(layers):
        stem = f"layers.{layer}."
        tensors[stem + "input_layernorm.weight"] = 1 + values(width)
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors[f"{stem}self_attn.{part}_proj.weight"] = values(rows * head_dim, width)
        tensors[stem + "self_attn.o_proj.weight"] = values(width, heads * head_dim)
    config = {
        "model_type": "llama", "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "num_hidden_layers": layers, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    return tensors, config


def states(tensors: dict[str, Tensor], config: dict[str, Any], h: Tensor) -> Tensor:
    """The head's inputs [P, E] from the outputs h [P, E] of the target's first layers, at positions 0 .. P - 1."""
    tensors = {name: value.to(h.dtype) for name, value in tensors.items()}
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    base, length = config.get("rope_theta", 10000.0), len(h)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight

    def rotated(x: Tensor) -> Tensor:
        angle = torch.arange(length).to(h)[:, None] * base ** (-torch.arange(0, size, 2).to(h) / size)
        left, right = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    for layer in range(config["num_hidden_layers"]):
        stem = f"layers.{layer}.self_attn."
        x = norm(h, tensors[f"layers.{layer}.input_layernorm.weight"])
        q = rotated((x @ tensors[stem + "q_proj.weight"].T).view(length, heads, size))
        k = rotated((x @ tensors[stem + "k_proj.weight"].T).view(length, shared, size))
        v = (x @ tensors[stem + "v_proj.weight"].T).view(length, shared, size)
        out = torch.zeros_like(q)
        for at in range(length):
            for head in range(heads):
                own = head * shared // heads
                share = (k[: at + 1, own] @ q[at, head] / size**0.5).softmax(0)
                out[at, head] = share @ v[: at + 1, own]
        h = h + out.flatten(1) @ tensors[stem + "o_proj.weight"].T
    return norm(h, tensors["norm.weight"])
