"""EAGLE written from its formulas: one pass over a whole row of pairs, no cache, no batch, any dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [Q, H, D]: pairs (i, i + D/2) rotated by the angle position * theta^(-2i/D)."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def attention(t: Tensors, stem: str, inputs: Tensor, config: Mapping[str, Any], visible: Tensor, at: Tensor) -> Tensor:
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    epsilon, theta = config.get("rms_norm_eps", 1e-6), config.get("rope_theta", 10000.0)
    parts = []
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        x = inputs @ t[f"{stem}self_attn.{part}_proj.weight"].T + t.get(f"{stem}self_attn.{part}_proj.bias", 0)
        x = x.view(len(x), count, -1)
        if f"{stem}self_attn.{part}_norm.weight" in t:
            x = norm(x, t[f"{stem}self_attn.{part}_norm.weight"], epsilon)
        parts.append((x if part == "v" else rotate(x, at, theta)).repeat_interleave(heads // count, 1))
    q, k, v = parts
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    shares = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
    return out @ t[f"{stem}self_attn.o_proj.weight"].T + t.get(f"{stem}self_attn.o_proj.bias", 0)


def mlp(t: Tensors, stem: str, h: Tensor, config: Mapping[str, Any]) -> Tensor:
    x = norm(h, t[f"{stem}post_attention_layernorm.weight"], config.get("rms_norm_eps", 1e-6))
    gate, up = (
        x @ t[f"{stem}mlp.{part}_proj.weight"].T + t.get(f"{stem}mlp.{part}_proj.bias", 0) for part in ("gate", "up")
    )
    return torch.nn.functional.silu(gate) * up @ t[f"{stem}mlp.down_proj.weight"].T + t.get(
        f"{stem}mlp.down_proj.bias", 0
    )


def fuse(t: Tensors, states: Tensor, flags: Mapping[str, Any], epsilon: float) -> Tensor:
    """States [Q, n E_t] of the target, fused as EAGLE-3 does."""
    if flags.get("fc_norm"):
        parts = states.chunk(3, -1)
        states = torch.cat([norm(part, t[f"fc_norm.{i}.weight"], epsilon) for i, part in enumerate(parts)], -1)
    if flags.get("norm_before_fc"):
        states = norm(states, t["input_norm.weight"], epsilon)
    return states @ t["fc.weight"].T


def outputs(
    t: Tensors,
    embedded: Tensor,
    features: Tensor,
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
    visible: Tensor,
    positions: Tensor,
) -> Tensor:
    """The layers' outputs [Q, E] for pairs of embeddings and states [Q, E]; `visible` [Q, Q] bool."""
    epsilon, stem = config.get("rms_norm_eps", 1e-6), first(t)
    if f"{stem}hidden_norm.weight" in t:
        normed = norm(features, t[f"{stem}hidden_norm.weight"], epsilon)
        inputs = torch.cat((norm(embedded, t[f"{stem}input_layernorm.weight"], epsilon), normed), -1)
        h = normed if flags.get("norm_before_residual") else features
    elif "gate.weight" in t:
        gate = torch.cat((features, embedded), -1) @ t["gate.weight"].T + t.get("gate.bias", 0)
        gate = 1 / (1 + (-gate).exp())
        inputs = h = gate * (features @ t["fc1.weight"].T + t.get("fc1.bias", 0)) + (1 - gate) * embedded
    else:
        fc = next(name for name in ("fc", "fc.fc", "fusion_fc") if f"{name}.weight" in t)
        h = torch.cat((embedded, features), -1) @ t[f"{fc}.weight"].T + t.get(f"{fc}.bias", 0)
        if fc == "fc.fc":
            up = norm(h, t["fc.post_attention_layernorm.weight"], epsilon) @ t["fc.mlp.up_proj.weight"].T
            gate = torch.nn.functional.silu(embedded @ t["fc.mlp.gate_proj.weight"].T)
            h = h + (gate * up) @ t["fc.mlp.down_proj.weight"].T
        inputs = h
    h = h + attention(t, stem, inputs, config, visible, positions)
    added = mlp(t, stem, h, config)
    h = added + (torch.cat((h, h), -1) if added.shape[-1] > h.shape[-1] else h)
    for layer in range(1, config.get("num_hidden_layers", 1)):
        stem = f"layers.{layer}."
        normed = norm(h, t[f"{stem}input_layernorm.weight"], epsilon)
        h = h + attention(t, stem, normed, config, visible, positions)
        h = h + mlp(t, stem, h, config)
    return h


def first(t: Tensors) -> str:
    """The prefix of the first layer's tensor names."""
    return next(stem for stem in ("midlayer.", "transformer.", "layers.0.") if f"{stem}self_attn.q_proj.weight" in t)


def draft(
    t: Tensors,
    embedding: Tensor,
    tokens: Sequence[int],
    features: Tensor,
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    """The states that are fed back, and the head's inputs, after each pair of `tokens` [Q]: both [Q, E].

    The first pairs have `features` [P, E]; each later one has the state fed back after the pair before it. A `window`
    among the flags is how many pairs each one attends to, itself included.
    """
    known, size = list(features), features.shape[-1]
    for count in range(len(known), len(tokens) + 1):
        h = outputs(
            t,
            embedding[torch.tensor(tokens[:count])],
            torch.stack(known[:count]),
            config,
            flags,
            torch.ones(count, count, dtype=torch.bool).tril().triu(1 - flags.get("window", count)),
            torch.arange(count).to(features.dtype),
        )
        fed, read = h[:, :size], h[:, -size:]
        if "norm.weight" in t:
            read = norm(h, t["norm.weight"], config.get("rms_norm_eps", 1e-6))
            fed = read if flags.get("norm_output") else h
        known.append(fed[-1])
    return fed, read
