"""The shape of the native stack. No torch here: a family is recognised by its config alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from .errors import ModelError

_LARGEST = 2**30  # of any size

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a stack. `frequencies` are the rotary ones, one per rotated pair, already scaled."""

    vocab: int
    width: int  # E
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    norm_eps: float
    frequencies: tuple[float, ...]  # R/2 of them; R < head_dim rotates the leading R dimensions only
    rope_scale: float = 1.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of each head's query and key before rotation
    tied: bool = False  # the head is the embedding
    grid: int | None = None  # tokens along a side of an image: positions are row and column, `frequencies` of each
    activation: Activation = "silu"  # of the MLP's gate
    embedding_scale: float = 1.0  # the embeddings of tokens are multiplied by it

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "mlp_width"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size > _LARGEST:
                raise ModelError(f"{name} must be a whole number of at most {_LARGEST}, got {size!r}")
            if size < 1:
                raise ModelError(f"{name} must be at least 1, got {size}")
        values = (self.norm_eps, self.rope_scale, self.embedding_scale, *self.frequencies)
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            raise ModelError(f"norm_eps ({self.norm_eps!r}) or the rotary frequencies are no finite numbers")
        if self.activation not in get_args(Activation):
            raise ModelError(f"activation must be one of {', '.join(get_args(Activation))}, got {self.activation!r}")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        rotated = 2 * len(self.frequencies) * (1 if self.grid is None else 2)
        if rotated > self.head_dim:
            raise ModelError(f"{rotated} rotated dimensions do not fit a head of {self.head_dim}")

    def fused_rows(self, name: str) -> tuple[int, ...]:
        """Rows that each published tensor takes in the fused parameter `name` (its last component, as "qkv_weight")."""
        part = name.rsplit(".", 1)[-1].rsplit("_", 1)[0]
        if part == "qkv":
            return (self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim)
        return (self.mlp_width, self.mlp_width) if part == "gate_up" else ()
