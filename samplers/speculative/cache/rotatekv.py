"""Stores older K/V in about two bits, after rotations that spread outliers over the channels.

RotateKV: Accurate and Robust 2-Bit KV Cache Quantization for LLMs via Outlier-Aware Adaptive Rotations,
https://arxiv.org/abs/2501.16383

    values: v H_D of each head;  keys, before the rotary embedding: (k_1 .. k_g) H_gD of g heads together, in the order
    of their channels' sums;  then per token, a group of channels sharing  scale = (max - min) / (2^bits - 1)

H is the normalised Walsh-Hadamard matrix, its own inverse. The order puts channels of like size into one group. The
first tokens, whose keys and values differ from all others, stay exact.

Deviates from the authors' code: the order is that of sums of absolute values in what a row encodes first, not of signed
sums in a calibration set. Values are rotated when they are written and read, and not in the model's weights. The number
of heads rotated together is the largest power of two that divides them, at most `heads`; channels that are no power of
two are rotated in blocks that are. The first `sinks` tokens stay exact; the authors find such tokens by their norms.
`clip` shrinks a group's range about its middle, where theirs scales minimum and maximum apart; levels are 2^bits,
theirs bits^2, which is one too many at 3. `bits=16` rotates and keeps all.
Exact: no. With `aligned`, drafted tokens are those of `sequential` with the same cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pardec.models.kv_stores.contracts import Store
from pardec.models.kv_stores.rotatekv import Rotated

from ...registry import register
from .stored_cache import StoredKV

_CLIP = 0.8  # the authors' at 2 bits


@register(
    "rotatekv", stage="cache", family="ar", paper="arXiv:2501.16383", checked="reference:reference.naive_stores.rotated"
)
@dataclass(frozen=True)
class RotateKV(StoredKV):
    bits: Annotated[int, "bits per code: 2, 3, 4 or 8; 16 only rotates"] = 2
    group: Annotated[int, "most channels that share a scale; fewer if this does not divide the rotated ones"] = 64
    heads: Annotated[int, "most heads whose keys are rotated together"] = 4
    clip: Annotated[float | None, "share of a group's range that codes span; none: 0.8 at 2 bits, else 1"] = None
    sinks: Annotated[int, "first tokens that stay exact"] = 1
    residual: Annotated[int, "newest tokens that stay exact"] = 32
    chunk: Annotated[int, "tokens that are encoded together"] = 32
    aligned: Annotated[bool, "end drafts where the next chunk is encoded, so that drafting changes no token"] = True

    def __post_init__(self) -> None:
        self.require("group", "heads", "residual", "chunk", least=1)
        self.require("sinks", least=0)
        self.require("clip", least=0.1, most=1)
        self.require_bits(self.bits)

    @cached_property
    def store(self) -> Store:
        clip = self.clip if self.clip is not None else _CLIP if self.bits == 2 else 1.0
        return Store(
            Rotated(self.bits, self.group, heads=self.heads, clip=clip, reorder=True),
            Rotated(self.bits, self.group, clip=clip),
            self.chunk,
            self.residual,
            self.sinks,
            before_rotation=True,
        )
