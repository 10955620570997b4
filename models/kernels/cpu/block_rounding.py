"""Rounds plain matrices to block-quantized weights, by the rules of ggml's Q8_0 and Q4_1 (ggml-quants.c).

    Q8_0    d = max |w| / 127            q = round(w / d), halves away from zero
    Q4_1    d = (max w - min w) / 15     q = floor((w - min w) / d + 0.5), at most 15

over 32 successive weights of a row. d and min w are stored as float16 after q was made with their float32 values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .blocks import GROUP, TYPES, Activations, BlockWeight, pack

_CHUNK = 2**22  # weights rounded at a time


def rounded(kind: str, weight: Tensor, dtype: torch.dtype, activations: Activations) -> BlockWeight:
    """The matrix `weight` [N, K] as blocks of `kind`, "Q8_0" or "Q4_1". K is a multiple of 32.

    A block that holds NaN or infinity gets NaN or infinity as its scale.
    """
    count, columns = weight.shape
    raw = torch.empty(count, columns // GROUP * TYPES[kind].size, dtype=torch.uint8)
    step = max(1, _CHUNK // columns)
    for start in range(0, count, step):
        rows = torch.unflatten(weight[start : start + step].float(), 1, (-1, GROUP))
        raw[start : start + step] = _ROUND[kind](rows).flatten(1)
    return BlockWeight((kind,), (count,), columns, dtype, activations, pack(kind, raw))


def overflows(kind: str, weight: Tensor) -> bool:
    """Whether finite weights need scales beyond float16."""
    low, high = (float(value) for value in weight.aminmax())
    most = max(-low, high) / 127 if kind == "Q8_0" else max((high - low) / 15, -low, low, -high, high)
    return torch.tensor(most).isfinite().item() and torch.tensor(most).half().isinf().item()  # type: ignore[return-value]


def _q8_0(rows: Tensor) -> Tensor:
    """Blocks [n, G, 34] of weights [n, G, 32]."""
    d = rows.abs().amax(-1, keepdim=True) / 127
    x = rows * _inverse(d)
    q = x.abs().add_(0.5).floor_().copysign_(x)
    return torch.cat((_bytes(d), _whole(q, torch.int8).view(torch.uint8)), -1)


def _q4_1(rows: Tensor) -> Tensor:
    """Blocks [n, G, 20] of weights [n, G, 32]."""
    low, high = rows.aminmax(dim=-1, keepdim=True)
    d = (high - low) / 15
    q = _whole(((rows - low) * _inverse(d) + 0.5).clamp_(0, 15), torch.uint8)
    return torch.cat((_bytes(d), _bytes(low), q[..., :16] | q[..., 16:] << 4), -1)


def _inverse(d: Tensor) -> Tensor:
    return torch.where(d == 0, 0, 1 / d)


def _whole(x: Tensor, kind: torch.dtype) -> Tensor:
    """Truncates x to whole numbers, NaN and infinity to 0: the scale of their block is not finite either way."""
    return x.nan_to_num_(0, 0, 0).to(kind)


def _bytes(x: Tensor) -> Tensor:
    return x.half().view(torch.uint8)


_ROUND: dict[str, Callable[[Tensor], Tensor]] = {"Q8_0": _q8_0, "Q4_1": _q4_1}
