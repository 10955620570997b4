"""The shape of the native stack. No torch here: families are told apart by their configs alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import ModelError

_LARGEST = 2**30  # of any size


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
    grid: int | None = None  # cells along a side of a picture: positions are row and column, `frequencies` of each

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "mlp_width"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size > _LARGEST:
                raise ModelError(f"{name} must be a whole number of at most {_LARGEST}, got {size!r}")
            if size < 1:
                raise ModelError(f"{name} must be at least 1, got {size}")
        numbers = (self.norm_eps, self.rope_scale, *self.frequencies)
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ModelError(f"norm_eps ({self.norm_eps!r}) or the rotary frequencies are no finite numbers")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly")
        rotated = 2 * len(self.frequencies) * (1 if self.grid is None else 2)
        if rotated > self.head_dim:
            raise ModelError(f"{rotated} rotated dimensions do not fit a head of {self.head_dim}")

    def pieces(self, name: str) -> tuple[int, ...]:
        """Rows that each published tensor takes in the fused parameter `name` (its last component, as "qkv_weight")."""
        part = name.rsplit(".", 1)[-1].rsplit("_", 1)[0]
        if part == "qkv":
            return (self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim)
        return (self.mlp_width, self.mlp_width) if part == "gate_up" else ()
