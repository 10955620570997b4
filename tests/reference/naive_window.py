"""A decoder with a window over the first and last tokens of a text; one query and key at a time, no cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def naive(network: Any, text: list[int], sink: int, window: int, far: str | None = None) -> Tensor:
    """Logits [S, V], float64. `far`: sinks from before the window are met by a query at position `window`, the sinks
    at their own positions ("offsets") or at 0 ("zero"); None: as they are.
    """
    config = network.config
    heads, kv, dim = config.heads, config.kv_heads, config.head_dim
    frequencies = torch.tensor(config.frequencies, dtype=torch.float32).double()

    def turned(x: Tensor, position: int) -> Tensor:
        half = len(frequencies)
        a, b = x[:half], x[half : 2 * half]
        cos, sin = (position * frequencies).cos(), (position * frequencies).sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin, x[2 * half :]))

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight

    h = network.embed.weight[torch.tensor(text)].double()
    for layer in network.layers:
        qkv = (normed(h, layer.attn_norm.double()) @ layer.qkv_weight.double().T).view(len(text), -1, dim)
        q, k, v = qkv.split([heads, kv, kv], 1)
        out = torch.zeros(len(text), heads, dim, dtype=torch.float64)
        for p in range(len(text)):
            seen = [s for s in range(p + 1) if s < sink or s > p - window]
            for head in range(heads):
                scores = []
                for s in seen:
                    at, where = p, s
                    if far is not None and p - s >= window:
                        at, where = window, s if far == "offsets" else 0
                    scores.append(turned(q[p, head], at) @ turned(k[s, head * kv // heads], where) / dim**0.5)
                weights = torch.stack(scores).softmax(0)
                out[p, head] = weights @ v[seen, head * kv // heads]
        h = h + out.flatten(1) @ layer.out_weight.double().T
        gate, up = (normed(h, layer.mlp_norm.double()) @ layer.gate_up_weight.double().T).chunk(2, -1)
        h = h + (torch.nn.functional.silu(gate) * up) @ layer.down_weight.double().T
    logits: Tensor = normed(h, network.norm.weight.double()) @ network.head.weight.double().T
    return logits
