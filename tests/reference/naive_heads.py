"""Heads of Medusa and Hydra from their formulas and published tensors: one state at a time, any dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.reference.naive_eagle import attention, mlp, norm

Tensors = Mapping[str, Tensor]
PREFIX = "prefix_embeding_layer."


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def linear(t: Tensors, stem: str, x: Tensor) -> Tensor:
    return t[f"{stem}.weight"] @ x + t.get(f"{stem}.bias", torch.zeros((), dtype=x.dtype))


def count(t: Tensors, pattern: str) -> list[int]:
    return sorted({int(match[1]) for name in t if (match := re.match(pattern, name))})


def medusa(t: Tensors, h: Tensor) -> list[Tensor]:
    """The logits [V] of every head of v0.1 tensors, from a state h [E]."""
    result = []
    for head in count(t, r"(\d+)\."):
        x, blocks = h, count(t, rf"{head}\.(\d+)\.linear")
        for block in blocks:
            x = x + silu(linear(t, f"{head}.{block}.linear", x))
        result.append(linear(t, f"{head}.{len(blocks)}", x))
    return result


def hydra(t: Tensors, h: Tensor, embedded: Sequence[Tensor]) -> Tensor:
    """The logits [V] of the head after a path with the embeddings `embedded` [E]; h [E] has passed the prefix layer."""
    head = len(embedded) - 1
    blocks = count(t, rf"hydra_mlp\.{head}\.(\d+)\.linear")
    x = h
    for at in blocks:
        stem = f"hydra_mlp.{head}.{at}"
        if f"{stem}.res_connection.weight" in t:
            z = torch.cat([h, *embedded])
            x = linear(t, f"{stem}.res_connection", z) + silu(linear(t, f"{stem}.linear", z))
        else:
            x = x + silu(linear(t, f"{stem}.linear", x))
    out = f"hydra_lm_head.{head}" if f"hydra_lm_head.{head}.weight" in t else f"hydra_lm_head.{head}.1"
    return linear(t, out, x)


def prefix(t: Tensors, states: Tensor, config: Mapping[str, Any]) -> Tensor:
    """The outputs [T, E] of the layer before Hydra++'s heads, for the target's states [T, E] from the first token."""
    stem, epsilon = f"{PREFIX}layers.0.", config["rms_norm_eps"]
    at = torch.arange(len(states))
    visible = at <= at[:, None]
    normed = norm(states, t[f"{stem}input_layernorm.weight"], epsilon)
    h = states + attention(t, stem, normed, config, visible, at)
    h = h + mlp(t, stem, h, config)
    return norm(h, t[f"{PREFIX}norm.weight"], epsilon)
