"""Confidence in Triton: argmax, top-1, top-2, mass, entropy, finiteness and a draw of each row in one pass.

The vocabulary is read in blocks of 256 logits, whose statistics are stored; a second kernel puts together those of a
row. With the top x_b, the mass m_b = sum exp(x - x_b) and the moment s_b = sum exp(x - x_b) (x - x_b) of a block,

    top = max_b x_b,   mass = sum_b e_b m_b,   moment = sum_b e_b (s_b + m_b (x_b - top)),   e_b = exp(x_b - top)

A program reads as many blocks as leave enough programs for all processors. Blocks are the same however many rows there
are, so that a row's statistics have the same bits alone and in any batch.

A draw is the argmax of x + g by the Gumbel-max rule in float64; g comes from a key of the row (`samplers.rng`), so that
no noise is stored.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

_BLOCK = 256  # logits of a block: one warp reads eight per thread
_PROGRAMS = 4096  # enough for every processor of a GPU: 31 warps for each of 132


class Statistics(NamedTuple):
    """Statistics of each row of logits, all of shape [...]."""

    ids: Tensor  # int64, the argmax
    top1: Tensor  # float32, as `top2`, `mass` and `entropy`
    top2: Tensor
    mass: Tensor
    entropy: Tensor
    highest: Tensor  # top1, or NaN for a row that is no distribution (see `models.finite`)
    drawn: Tensor | None  # int64


@triton.jit
def _shifted(bits, shift: tl.constexpr):
    """`bits` int64 after a logical shift to the right."""
    return (bits >> shift) & ((1 << (64 - shift)) - 1)


@triton.jit
def _gumbel(key, ids):
    """Gumbel noise in float64 of the tokens `ids` of a row with `key`: `rng.gumbel` of `rng.Keyed.uniform`."""
    bits = key + (ids.to(tl.int64) + 2) * -0x61C8864680B583EB
    bits = (bits ^ _shifted(bits, 30)) * -0x40A7B892E31B1A47
    bits = (bits ^ _shifted(bits, 27)) * -0x6B2FB644ECCEEE15
    bits = bits ^ _shifted(bits, 31)
    uniform = (_shifted(bits, 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(uniform))


@triton.jit
def _blocks(
    logits_ptr,
    top1_ptr,  # [N, blocks], as the following
    top2_ptr,
    mass_ptr,
    moment_ptr,
    best_ptr,
    sound_ptr,
    score_ptr,  # written if DRAWS, as `drawn_ptr`
    drawn_ptr,
    key_ptr,  # [N], read if DRAWS
    tokens_ptr,  # [N, K], read if BOOSTED
    by_ptr,  # [N, K], read if BOOSTED
    vocab,
    stride,
    blocks,
    each,  # blocks of a program
    temperature,
    BOOSTED: tl.constexpr,  # K
    SCALED: tl.constexpr,
    DRAWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * each
    for block in range(first, tl.minimum(first + each, blocks)):
        at = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * stride + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        for k in range(BOOSTED):
            token = tl.load(tokens_ptr + row * BOOSTED + k)
            x += tl.where(at == token, tl.load(by_ptr + row * BOOSTED + k), 0.0)
        if SCALED:
            x = x / temperature
        sound = (x == x) & (x < float("inf"))
        x = tl.where(x == x, x, float("-inf"))
        top1 = tl.max(x, 0)
        best = tl.min(tl.where(x == top1, at, vocab), 0)  # the lowest id on ties
        base = tl.where(top1 == float("-inf"), 0.0, top1)
        gap = tl.where(x == float("-inf"), 0.0, x - base)
        weight = tl.where(x == float("-inf"), 0.0, tl.exp(gap))
        to = row * blocks + block
        tl.store(top1_ptr + to, top1)
        tl.store(top2_ptr + to, tl.max(tl.where(at == best, float("-inf"), x), 0))
        tl.store(mass_ptr + to, tl.sum(weight, 0))
        tl.store(moment_ptr + to, tl.sum(weight * gap, 0))
        tl.store(best_ptr + to, best)
        tl.store(sound_ptr + to, tl.min(sound.to(tl.int32), 0))
        if DRAWS:
            score = tl.where(at < vocab, _gumbel(tl.load(key_ptr + row), at) + x.to(tl.float64), float("-inf"))
            highest = tl.max(score, 0)
            tl.store(score_ptr + to, highest)
            tl.store(drawn_ptr + to, tl.min(tl.where((score == highest) & (at < vocab), at, vocab), 0))


@triton.jit
def _merge(
    block_top1_ptr,  # [N, blocks], as the following
    block_top2_ptr,
    block_mass_ptr,
    block_moment_ptr,
    block_best_ptr,
    block_sound_ptr,
    block_score_ptr,
    block_drawn_ptr,
    ids_ptr,  # [N], as the following
    top1_ptr,
    top2_ptr,
    mass_ptr,
    entropy_ptr,
    highest_ptr,
    drawn_ptr,
    blocks,
    vocab,
    DRAWS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, PADDED)
    some, at = block < blocks, row * blocks + block
    tops = tl.load(block_top1_ptr + at, mask=some, other=float("-inf"))
    names = tl.load(block_best_ptr + at, mask=some, other=vocab)
    top1 = tl.max(tops, 0)
    best = tl.min(tl.where(tops == top1, names, vocab), 0)
    seconds = tl.load(block_top2_ptr + at, mask=some, other=float("-inf"))
    base = tl.where(top1 == float("-inf"), 0.0, top1)
    drop = tl.where(tops == float("-inf"), 0.0, tops - base)
    share = tl.where(tops == float("-inf"), 0.0, tl.exp(drop))
    masses = tl.load(block_mass_ptr + at, mask=some, other=0.0)
    moments = tl.load(block_moment_ptr + at, mask=some, other=0.0)
    mass = tl.sum(share * masses, 0)
    moment = tl.sum(share * (moments + masses * drop), 0)
    sound = tl.min(tl.load(block_sound_ptr + at, mask=some, other=1), 0)
    tl.store(ids_ptr + row, best.to(tl.int64))
    tl.store(top1_ptr + row, top1)
    tl.store(top2_ptr + row, tl.max(tl.where(names == best, seconds, tops), 0))
    tl.store(mass_ptr + row, mass)
    tl.store(entropy_ptr + row, tl.log(mass) - moment / mass)
    tl.store(highest_ptr + row, tl.where((sound != 0) & (top1 > float("-inf")), top1, float("nan")))
    if DRAWS:
        scores = tl.load(block_score_ptr + at, mask=some, other=float("-inf"))
        names = tl.load(block_drawn_ptr + at, mask=some, other=vocab)
        drawn = tl.min(tl.where(scores == tl.max(scores, 0), names, vocab), 0)
        tl.store(drawn_ptr + row, drawn.to(tl.int64))


def statistics(
    logits: Tensor,
    temperature: float = 1.0,
    tokens: Tensor | None = None,
    by: Tensor | None = None,
    keys: Tensor | None = None,
) -> Statistics:
    """The statistics of `logits` [..., V] of any floating-point type.

    `tokens` and `by`, [..., K] both, are read once for each block of the vocabulary. With `keys` [...] int64, see
    `rng.Keyed.keys`, a token is drawn in each row.
    """
    if torch.compiler.is_compiling():
        ids, top1, top2, mass, entropy, highest, token = statistics_op(logits, temperature, tokens, by, keys)
        return Statistics(ids, top1, top2, mass, entropy, highest, None if keys is None else token)
    shape, vocab = logits.shape[:-1], logits.shape[-1]
    rows = logits.reshape(-1, vocab)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    count, device = rows.shape[0], logits.device
    results = torch.empty((5, count), dtype=torch.float32, device=device)
    chosen = torch.empty((1 if keys is None else 2, count), dtype=torch.int64, device=device)
    boosted = 0
    if tokens is not None and by is not None:
        boosted, tokens, by = tokens.shape[-1], tokens.contiguous(), by.float().contiguous()
    if count:
        block = min(_BLOCK, triton.next_power_of_2(vocab))
        blocks = triton.cdiv(vocab, block)
        each = max(1, count * blocks // _PROGRAMS)
        parts = torch.empty((4, count, blocks), dtype=torch.float32, device=device)
        names = torch.empty((2 if keys is None else 3, count, blocks), dtype=torch.int32, device=device)
        scores = parts[0] if keys is None else torch.empty((count, blocks), dtype=torch.float64, device=device)
        stored = (*parts, *names[:2], scores, names[-1])
        launch: Any = _blocks[(count, triton.cdiv(blocks, each))]
        launch(
            rows,
            *stored,
            chosen if keys is None else keys.contiguous(),
            tokens if boosted else chosen,
            by if boosted else results,
            vocab,
            rows.stride(0),
            blocks,
            each,
            temperature,
            BOOSTED=boosted,
            SCALED=temperature != 1,
            DRAWS=keys is not None,
            BLOCK=block,
            num_warps=1,
        )
        merge: Any = _merge[(count,)]
        padded = triton.next_power_of_2(blocks)
        outputs = (chosen[0], *results, chosen[-1])
        merge(
            *stored, *outputs, blocks, vocab, DRAWS=keys is not None, PADDED=padded, num_warps=4 if padded > 64 else 1
        )
    ids, *more = (each.view(shape) for each in (*chosen, *results))
    drawn = None if keys is None else more.pop(0)
    top1, top2, mass, entropy, highest = more
    return Statistics(ids, top1, top2, mass, entropy, highest, drawn)


def confidence(
    logits: Tensor, temperature: float = 1.0, tokens: Tensor | None = None, by: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """ids (int64), top1, top2, mass, entropy (float32), each [...], of `logits` [..., V]; see `statistics`."""
    return statistics(logits, temperature, tokens, by)[:5]


@custom_op("pardec::statistics", mutates_args=())
def statistics_op(
    logits: Tensor, temperature: float, tokens: Tensor | None, by: Tensor | None, keys: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`statistics` as an operation of PyTorch, for torch.compile. Without `keys` the tensor of drawn ids is empty."""
    *each, drawn = statistics(logits, temperature, tokens, by, keys)
    # Copies: results of an operation must not share memory.
    ids, top1, top2, mass, entropy, highest = (found.clone() for found in each if found is not None)
    return ids, top1, top2, mass, entropy, highest, ids.new_empty(0) if drawn is None else drawn.clone()


@statistics_op.register_fake
def _(
    logits: Tensor, temperature: float, tokens: Tensor | None, by: Tensor | None, keys: Tensor | None
) -> tuple[Tensor, ...]:
    shape = logits.shape[:-1]
    ids = logits.new_empty(shape, dtype=torch.int64)
    values = [logits.new_empty(shape, dtype=torch.float32) for _ in range(5)]
    return ids, *values, ids.new_empty(0) if keys is None else torch.empty_like(ids)
