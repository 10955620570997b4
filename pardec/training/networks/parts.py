"""Norm, rotary embedding, attention weights and gated MLP of the trained networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, in the dtype of x."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in the dtype of x."""
    return F.linear(x, weight.to(x.dtype))


def rotary(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [B, Q, H, D] rotated by its positions [B, Q] or [Q], with Llama's order of halves."""
    size = x.shape[-1]
    angles = positions[..., None].float() * theta ** (-torch.arange(0, size, 2, device=x.device).float() / size)
    cos, sin = angles.cos().unsqueeze(-2).to(x.dtype), angles.sin().unsqueeze(-2).to(x.dtype)
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values [B, Q, K, D] of grouped queries as [B, H, Q, D]."""
    return x.repeat_interleave(heads // x.shape[2], 2).transpose(1, 2)


def matrix(rows: int, columns: int, generator: torch.Generator, std: float = 0.02) -> nn.Parameter:
    """Random weights [rows, columns]."""
    return nn.Parameter(torch.randn(rows, columns, generator=generator) * std)


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int, generator: torch.Generator) -> None:
        super().__init__()
        self.gate, self.up = matrix(inner, width, generator), matrix(inner, width, generator)
        self.down = matrix(width, inner, generator)

    def forward(self, x: Tensor) -> Tensor:
        return linear(F.silu(linear(x, self.gate)) * linear(x, self.up), self.down)

    def copy(self, layer: dict[str, Tensor]) -> None:
        """Copies the target layer's weights, of its first inner units alone if it has more; nothing if it has fewer."""
        inner = len(self.gate)
        if len(layer["gate_proj"]) < inner:
            return
        with torch.no_grad():
            self.gate.copy_(layer["gate_proj"][:inner])
            self.up.copy_(layer["up_proj"][:inner])
            self.down.copy_(layer["down_proj"][:, :inner])

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The weights under their published names."""
        parts = {"gate_proj": self.gate, "up_proj": self.up, "down_proj": self.down}
        return {f"{prefix}mlp.{name}.weight": value for name, value in parts.items()}


def copy_attention(network: nn.Module, layer: dict[str, Tensor]) -> None:
    """Copies the target layer's q, k, v and o to a network's where the shapes are the same."""
    for name in "qkvo":
        own: Tensor = getattr(network, name)
        if own.shape == layer[f"{name}_proj"].shape:
            own.copy_(layer[f"{name}_proj"])


def attention_tensors(network: nn.Module, prefix: str) -> dict[str, Tensor]:
    """A network's q, k, v and o under their published names."""
    return {f"{prefix}self_attn.{name}_proj.weight": getattr(network, name) for name in "qkvo"}
