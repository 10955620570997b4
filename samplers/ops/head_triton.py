"""The head's product and its statistics in Triton: a program measures a part of the vocabulary and stores no logits."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pardec.models.kernels.choice import interpreted

_PART = 1024  # tokens that one program measures


@triton.jit
def _measure(
    states_ptr,  # [N, E]
    weight_ptr,  # [V, E]
    ids_ptr,  # [P, N], as all that follows
    sums_ptr,  # [4, P, N]: top-1, top-2, mass, moment
    tokens_ptr,  # [N, K], read if RAISED
    by_ptr,  # [N, K], read if RAISED
    count,
    width,  # E
    vocab,
    states_n,
    weight_v,
    temperature,
    RAISED: tl.constexpr,  # K
    SCALED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_E: tl.constexpr,
    WIDE: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    present = n < count
    top1 = tl.full([BLOCK_N], float("-inf"), tl.float32)
    top2 = tl.full([BLOCK_N], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_N], tl.float32)
    moment = tl.zeros([BLOCK_N], tl.float32)
    best = tl.zeros([BLOCK_N], tl.int32)
    begin = tl.program_id(1) * PART
    for start in range(begin, tl.minimum(begin + PART, vocab), BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        real = v < vocab
        x = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
        for first in range(0, width, BLOCK_E):
            e = first + tl.arange(0, BLOCK_E)
            inside = e < width
            at = n.to(tl.int64)[:, None] * states_n + e[None, :]
            states = tl.load(states_ptr + at, mask=present[:, None] & inside[None, :], other=0.0)
            at = v.to(tl.int64)[None, :] * weight_v + e[:, None]
            weight = tl.load(weight_ptr + at, mask=real[None, :] & inside[:, None], other=0.0)
            if WIDE:
                states = states.to(tl.float32)
                weight = weight.to(tl.float32)
            x += tl.dot(states, weight, input_precision="ieee")
        x = x.to(states_ptr.dtype.element_ty).to(tl.float32)  # rounded as a head that stores its logits rounds them
        for k in range(RAISED):
            token = tl.load(tokens_ptr + n.to(tl.int64) * RAISED + k, mask=present, other=-1)
            by = tl.load(by_ptr + n.to(tl.int64) * RAISED + k, mask=present, other=0.0)
            x += tl.where(v[None, :] == token[:, None], by[:, None], 0.0)
        if SCALED:
            x = x / temperature
        x = tl.where(real[None, :], x, float("-inf"))
        high = tl.max(x, 1)
        where = tl.min(tl.where(x == high[:, None], v[None, :], vocab), 1)  # the lowest id on ties
        second = tl.max(tl.where(v[None, :] == where[:, None], float("-inf"), x), 1)
        rises = high > top1
        top2 = tl.where(rises, tl.maximum(top1, second), tl.maximum(top2, high))
        best = tl.where(rises, where, best)
        higher = tl.maximum(top1, high)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        drop = tl.where(top1 == float("-inf"), 0.0, top1 - base)
        kept = tl.where(top1 == float("-inf"), 0.0, tl.exp(drop))
        gap = tl.where(x == float("-inf"), 0.0, x - base[:, None])
        share = tl.where(x == float("-inf"), 0.0, tl.exp(gap))
        moment = kept * (moment + mass * drop) + tl.sum(share * gap, 1)
        mass = mass * kept + tl.sum(share, 1)
        top1 = higher
    each = tl.num_programs(1).to(tl.int64) * count
    at = tl.program_id(1).to(tl.int64) * count + n
    tl.store(ids_ptr + at, best.to(tl.int64), mask=present)
    tl.store(sums_ptr + at, top1, mask=present)
    tl.store(sums_ptr + each + at, top2, mask=present)
    tl.store(sums_ptr + 2 * each + at, mass, mask=present)
    tl.store(sums_ptr + 3 * each + at, moment, mask=present)


def confidence_of(
    states: Tensor, weight: Tensor, temperature: float, tokens: Tensor | None, by: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """ids (int64), top-1, top-2, mass and moment (float32), [P, N] each, of the P parts of the vocabulary.

    Of states [N, E] and weight [V, E], with `tokens` and `by` [N, K].
    """
    states, weight = (each if each.stride(-1) == 1 else each.contiguous() for each in (states, weight))
    (count, width), vocab = states.shape, len(weight)
    parts = triton.cdiv(vocab, _PART)
    ids = torch.empty((parts, count), dtype=torch.int64, device=states.device)
    sums = torch.empty((4, parts, count), dtype=torch.float32, device=states.device)
    boosted = 0
    if tokens is not None and by is not None:
        boosted, tokens, by = tokens.shape[-1], tokens.contiguous(), by.float().contiguous()
    if count:
        rows = min(64, max(16, triton.next_power_of_2(count)))
        launch: Any = _measure[(triton.cdiv(count, rows), parts)]
        launch(
            states,
            weight,
            ids,
            sums,
            tokens if boosted else ids,
            by if boosted else sums,
            count,
            width,
            vocab,
            states.stride(0),
            weight.stride(0),
            temperature,
            RAISED=boosted,
            SCALED=temperature != 1,
            PART=_PART,
            BLOCK_N=rows,
            BLOCK_V=64,
            BLOCK_E=32 if states.dtype == torch.float32 else 64,
            WIDE=interpreted(),
        )
    top1, top2, mass, moment = sums
    return ids, top1, top2, mass, moment
