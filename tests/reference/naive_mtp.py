"""An MTP layer written from its formulas: random tensors under published names, and one pass over a whole row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.reference.naive_eagle import attention, mlp, norm

STEMS = {"MiMo": "model.mtp_layers.0.", "nextn": "model.layers.4."}  # of a model with four layers
NORMS = {"MiMo": ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")}
NORMS["nextn"] = ("enorm", "hnorm", "eh_proj", "shared_head.norm")


def layer(
    style: str, width: int, *, heads: int, kv_heads: int, head_dim: int, inner: int = 20, biased: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Random tensors of one layer, and a config."""
    random = np.random.RandomState(len(style) + width)

    def values(*shape: int, scale: float = 0.4) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape) * scale).float()

    stem, (token, state, projection, last) = STEMS[style], NORMS[style]
    tensors = {f"{stem}{name}.weight": 1 + values(width, scale=0.3) for name in (token, state, last)}
    tensors[f"{stem}{projection}.weight"] = values(width, 2 * width)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{stem}{name}.weight"] = 1 + values(width, scale=0.3)
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        tensors[f"{stem}self_attn.{part}_proj.weight"] = values(count * head_dim, width)
        if biased:
            tensors[f"{stem}self_attn.{part}_proj.bias"] = values(count * head_dim)
    tensors[f"{stem}self_attn.o_proj.weight"] = values(width, heads * head_dim)
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        tensors[f"{stem}mlp.{name}_proj.weight"] = values(*shape)
    config = {
        "model_type": "mimo" if style == "MiMo" else "llama",
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 640.0,
    }
    return tensors, config


def draft(
    style: str,
    t: Mapping[str, Tensor],
    config: Mapping[str, Any],
    embedding: Tensor,
    tokens: Sequence[int],
    states: Tensor,
) -> tuple[Tensor, Tensor]:
    """What is fed back, and the head's inputs, after each pair of `tokens` [Q]: both [Q, E].

    The first pairs have the target's `states` [P, E], those that the layout reads; each later one has what is fed back
    after the pair before it.
    """
    stem, (token, state, projection, last), epsilon = STEMS[style], NORMS[style], config["rms_norm_eps"]
    t = {name: value.to(states.dtype) for name, value in t.items()}
    known = list(states)
    while True:
        count = min(len(known), len(tokens))
        e = norm(embedding[torch.tensor(tokens[:count])], t[f"{stem}{token}.weight"], epsilon)
        h = norm(torch.stack(known[:count]), t[f"{stem}{state}.weight"], epsilon)
        u = torch.cat((h, e) if style == "MiMo" else (e, h), -1) @ t[f"{stem}{projection}.weight"].T
        visible, at = torch.ones(count, count, dtype=torch.bool).tril(), torch.arange(count).to(states.dtype)
        u = u + attention(t, stem, norm(u, t[f"{stem}input_layernorm.weight"], epsilon), config, visible, at)
        u = u + mlp(t, stem, u, config)
        read = norm(u, t[f"{stem}{last}.weight"], epsilon)
        fed = u if style == "MiMo" else read
        if count == len(tokens):
            return fed, read
        known.append(fed[-1])
