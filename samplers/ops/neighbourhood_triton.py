"""Sums over neighbours in Triton: one program per token, which reads its table line once and stores no gathers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _neighbour_sums(
    values_ptr,  # [N, V]
    ids_ptr,  # [N, M]
    nearest_ptr,  # [V, K]
    out_ptr,  # [N, M]
    count,  # M
    width,  # K
    values_n,
    nearest_v,
    nearest_k,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = row * count + tl.program_id(1)
    line = nearest_ptr + tl.load(ids_ptr + index).to(tl.int64) * nearest_v
    total = tl.zeros([BLOCK], out_ptr.dtype.element_ty)
    for start in range(0, width, BLOCK):
        k = start + tl.arange(0, BLOCK)
        near = tl.load(line + k * nearest_k, mask=k < width, other=0)
        total += tl.load(values_ptr + row * values_n + near, mask=k < width, other=0.0)
    tl.store(out_ptr + index, tl.sum(total, 0))


@triton.jit
def _mass_within(
    probs_ptr,  # [N, V]
    token_ptr,  # [N]
    nearest_ptr,  # [V, K]
    limit_ptr,  # [N]
    mass_ptr,  # [N]
    any_ptr,  # [N] int8
    width,  # K
    probs_n,
    nearest_v,
    nearest_k,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    line = nearest_ptr + tl.load(token_ptr + row).to(tl.int64) * nearest_v
    limit = tl.load(limit_ptr + row)
    before = tl.zeros([1], mass_ptr.dtype.element_ty)
    most = tl.zeros([1], mass_ptr.dtype.element_ty)
    some = tl.zeros([1], tl.int32)
    start = tl.full([], 0, tl.int32)
    while (start < width) & (tl.max(before, 0) <= limit):
        k = start + tl.arange(0, BLOCK)
        near = tl.load(line + k * nearest_k, mask=k < width, other=0)
        each = tl.load(probs_ptr + row * probs_n + near, mask=k < width, other=0.0)
        mass = before + tl.cumsum(each, 0)
        fits = (k < width) & (mass <= limit)
        most = tl.maximum(most, tl.max(tl.where(fits, mass, 0.0), 0))
        some = tl.maximum(some, tl.max(fits.to(tl.int32), 0))
        before += tl.sum(each, 0)
        start += BLOCK
    first = tl.arange(0, 1)
    tl.store(mass_ptr + row + first, most)
    tl.store(any_ptr + row + first, some.to(tl.int8))


def neighbour_sums(values: Tensor, ids: Tensor, nearest: Tensor) -> Tensor:
    """[N, M] in the type of `values` [N, V]; `ids` [N, M], `nearest` [V, K]."""
    values = values if values.stride(-1) == 1 else values.contiguous()
    out = torch.empty(ids.shape, dtype=values.dtype, device=values.device)
    if out.numel():
        launch: Any = _neighbour_sums[tuple(ids.shape)]
        strides = values.stride(0), *nearest.stride()
        sizes = ids.shape[1], nearest.shape[1]
        launch(values, ids.contiguous(), nearest, out, *sizes, *strides, BLOCK=_block(nearest))
    return out


def mass_within(distribution: Tensor, token: Tensor, nearest: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Like `neighbourhood.mass_within`; `distribution` [N, V], `token` [N], `nearest` [V, K], `limit` [N]."""
    distribution = distribution if distribution.stride(-1) == 1 else distribution.contiguous()
    mass = torch.empty(len(distribution), dtype=distribution.dtype, device=distribution.device)
    some = torch.empty(len(distribution), dtype=torch.int8, device=distribution.device)
    if len(distribution):
        launch: Any = _mass_within[(len(distribution),)]
        strides = distribution.stride(0), *nearest.stride()
        limit = limit.to(distribution.dtype).contiguous()
        block = _block(nearest)
        launch(distribution, token.contiguous(), nearest, limit, mass, some, nearest.shape[1], *strides, BLOCK=block)
    return mass, some.bool()


def _block(nearest: Tensor) -> int:
    return int(min(1024, triton.next_power_of_2(max(1, nearest.shape[1]))))
