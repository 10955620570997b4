"""Confidence in Triton: argmax, top-1, top-2, mass and entropy of each row in one pass over the vocabulary."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _confidence(
    logits_ptr,
    ids_ptr,
    top1_ptr,
    top2_ptr,
    mass_ptr,
    entropy_ptr,
    tokens_ptr,  # [N, K], read if BOOSTED
    by_ptr,  # [N, K], read if BOOSTED
    vocab,
    stride,
    temperature,
    BOOSTED: tl.constexpr,  # K
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    top1 = float("-inf")
    top2 = float("-inf")
    mass = 0.0  # sum of exp(x - top1)
    moment = 0.0  # sum of exp(x - top1) (x - top1)
    best = 0
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * stride + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        for k in range(BOOSTED):
            token = tl.load(tokens_ptr + row * BOOSTED + k)
            x += tl.where(at == token, tl.load(by_ptr + row * BOOSTED + k), 0.0)
        if SCALED:
            x = x / temperature
        high = tl.max(x, 0)
        where = tl.min(tl.where(x == high, at, vocab), 0)  # the lowest id on ties
        second = tl.max(tl.where(at == where, float("-inf"), x), 0)
        rises = high > top1
        top2 = tl.where(rises, tl.maximum(top1, second), tl.maximum(top2, high))
        best = tl.where(rises, where, best)
        higher = tl.maximum(top1, high)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        drop = tl.where(top1 == float("-inf"), 0.0, top1 - base)
        correction = tl.where(top1 == float("-inf"), 0.0, tl.exp(drop))
        gap = tl.where(x == float("-inf"), 0.0, x - base)
        weight = tl.where(x == float("-inf"), 0.0, tl.exp(gap))
        moment = correction * (moment + mass * drop) + tl.sum(weight * gap, 0)
        mass = mass * correction + tl.sum(weight, 0)
        top1 = higher
    tl.store(ids_ptr + row, best)
    tl.store(top1_ptr + row, top1)
    tl.store(top2_ptr + row, top2)
    tl.store(mass_ptr + row, mass)
    tl.store(entropy_ptr + row, tl.log(mass) - moment / mass)


def confidence(
    logits: Tensor, temperature: float = 1.0, tokens: Tensor | None = None, by: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """ids (int64), top1, top2, mass, entropy (float32), each [...], of `logits` [..., V] of any floating-point type.

    `tokens` and `by`, [..., K] both, are read once for each block of the vocabulary.
    """
    shape, vocab = logits.shape[:-1], logits.shape[-1]
    rows = logits.reshape(-1, vocab)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    count = rows.shape[0]
    ids = torch.empty(count, dtype=torch.int64, device=logits.device)
    top1, top2, mass, entropy = torch.empty((4, count), dtype=torch.float32, device=logits.device)
    boosted = 0
    if tokens is not None and by is not None:
        boosted, tokens, by = tokens.shape[-1], tokens.contiguous(), by.float().contiguous()
    if count:
        launch: Any = _confidence[(count,)]
        launch(
            rows,
            ids,
            top1,
            top2,
            mass,
            entropy,
            tokens if boosted else ids,
            by if boosted else top1,
            vocab,
            rows.stride(0),
            temperature,
            BOOSTED=boosted,
            SCALED=temperature != 1,
            BLOCK=min(4096, triton.next_power_of_2(vocab)),
        )
    return ids.view(shape), top1.view(shape), top2.view(shape), mass.view(shape), entropy.view(shape)
