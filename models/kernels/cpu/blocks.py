"""Block-quantized weights, packed as GGUF files have them: 4 to 8 bits for each weight, and scales for each group.

    W[n, k] = q[n, k] * s[n, g] + m[n, g]      g: 32 successive k, or 16 in Q6_K; float32, rounded once

A matrix takes as many bytes as in the file, and a matmul reads no more than those. What is multiplied stays float32
(`activations="float32"`: outputs are those of the dequantized matrix, to float32 rounding) or is rounded to int8 in
groups of 32 ("int8": several times as fast where arithmetic decides; outputs differ by about 0.5%).

In memory, 32 rows of W are a panel, and a panel has its groups one after the other, each with its scales first:

    types of 32     [scales: 32 float16] [minima: 32 float16, if any] [codes]
    MXFP4           [exponents: 32 bytes] [codes]
    Q4_K, Q5_K      every 8 groups [32 float16] [32 float16], then in each group [scales: 32 bytes] [minima] [codes]
    Q6_K            every 8 groups [32 float16], then in each group [scales: 2 x 32 int8] [codes]
    codes           [4, 32, 4] bytes: the lower 4 bits of k = 4 i + j and, above them, of k = 16 + 4 i + j
                    then [32, 4] bytes, of which bit i is the fifth bit of k = 4 i + j, and bit 4 + i of 16 + 4 i + j
                    or [2, 32, 4] bytes, of which bits 2 i and 2 i + 1 are those above the lower 4, for k < 16 and after
                    Q8_0: [8, 32, 4] bytes

The formats are those of ggml (github.com/ggml-org/llama.cpp, ggml-common.h); blocks.c multiplies with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from . import library
from .library import COUNT, POINTER, STEP
from .memory import room
from .packed import PackedWeight

Activations = Literal["float32", "int8"]

WIDTH, GROUP = 32, 32  # rows of a panel and columns of a group, as in blocks.c
_SUPER = 8  # groups that share the scale of their scales
_CHUNK = 2**22  # weights packed or dequantized at a time
_FILE = Path(__file__).with_suffix(".c")
_PACKING = Path(__file__).with_name("block_packing.c")
_ARGUMENTS = (COUNT, COUNT, COUNT, POINTER, STEP, POINTER, POINTER, STEP, COUNT, POINTER, STEP, *[COUNT] * 4)

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers of 4-bit floats

_MXFP4_MOST = 252  # exponents above it make 12 * 2^(e - 128) infinite


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of block-quantized tensor in GGUF files."""

    number: int  # in blocks.c
    block: int  # weights of a block in the file
    size: int  # bytes of a block in the file
    bits: int  # bits of a code
    scales: int  # bytes of each row's scales and minima in a group
    head: int = 0  # bytes of each row's scales for all groups of a block of 256
    offset: int = 0  # subtracted from a code
    table: tuple[int, ...] = ()  # the number that a code stands for

    @property
    def codes(self) -> int:
        """Bytes of the codes of a group in a panel."""
        return WIDTH * GROUP * self.bits // 8


TYPES = {
    "Q4_0": BlockType(0, 32, 18, 4, 2, offset=8),
    "Q4_1": BlockType(1, 32, 20, 4, 4),
    "Q5_0": BlockType(2, 32, 22, 5, 2, offset=16),
    "Q5_1": BlockType(3, 32, 24, 5, 4),
    "Q8_0": BlockType(4, 32, 34, 8, 2),
    "IQ4_NL": BlockType(5, 32, 18, 4, 2, table=_IQ4_NL),
    "MXFP4": BlockType(6, 32, 17, 4, 1, table=_MXFP4),
    "Q4_K": BlockType(7, 256, 144, 4, 2, head=4),
    "Q5_K": BlockType(8, 256, 176, 5, 2, head=4),
    "Q6_K": BlockType(9, 256, 210, 6, 2, head=2, offset=32),
}


class BlockWeight(PackedWeight):
    """A matrix [N, K] of block-quantized weights: matrices [n, K], each of one type, one below the other."""

    packed: tuple[Tensor, ...]  # per type: uint8 [ceil(n / 32), bytes of a panel]; zeros after the last row
    types: tuple[str, ...]
    counts: tuple[int, ...]  # n of each
    activations: Activations
    sections: tuple[tuple[int, int, int], ...]  # per type: its number in blocks.c, n, and the memory address

    @staticmethod
    def __new__(
        cls,
        types: tuple[str, ...],
        counts: tuple[int, ...],
        columns: int,
        dtype: torch.dtype,
        activations: Activations,
        *packed: Tensor,
    ) -> BlockWeight:
        weight: BlockWeight = Tensor._make_wrapper_subclass(
            cls, (sum(counts), columns), dtype=dtype, device=packed[0].device
        )
        weight.packed, weight.types, weight.counts, weight.activations = packed, types, counts, activations
        numbers = [TYPES[kind].number for kind in types]
        weight.sections = tuple(zip(numbers, counts, [part.data_ptr() for part in packed], strict=True))
        return weight

    def __init__(self, *parts: object) -> None: ...

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.types, self.counts, self.shape[1], self.dtype, self.activations, *self.packed

    @property
    def stored_bytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in self.packed)

    @property
    def dense(self) -> Tensor:
        return self.rows(torch.arange(self.shape[0]))

    def rows(self, index: Tensor) -> Tensor:
        """[..., K] the rows `index` [...], dequantized. Raises IndexError for a row that there is not."""
        low, high = (int(each) for each in index.aminmax()) if index.numel() else (0, 0)
        if low < 0 or high >= self.shape[0]:
            raise IndexError(f"rows must lie in 0..{self.shape[0] - 1}, got {low}..{high}")
        if len(self.types) == 1 and index.numel() * self.shape[1] <= _CHUNK:
            whole = _dequantized(self.types[0], self.packed[0], index.reshape(-1), self.shape[1])
            return whole.to(self.dtype).view(*index.shape, self.shape[1])
        out = torch.empty(index.numel(), self.shape[1], dtype=self.dtype)
        flat, start = index.reshape(-1), 0
        for kind, count, packed in zip(self.types, self.counts, self.packed, strict=True):
            here = slice(None) if len(self.types) == 1 else ((flat >= start) & (flat < start + count)).nonzero()[:, 0]
            own = flat[here] - start
            step = max(1, _CHUNK // self.shape[1])
            values = [_dequantized(kind, packed, part, self.shape[1]) for part in torch.split(own, step)]
            out[here] = torch.cat(values).to(self.dtype) if values else out[here]
            start += count
        return out.view(*index.shape, self.shape[1])

    def matmul(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        run = self._kernel_for(x)
        if run is None:
            out = torch.nn.functional.linear(_rounded(x) if self.activations == "int8" else x, self.dense.to(x.dtype))
            return out if base is None else out + base
        rows, columns = self.shape
        flat = x if x.dim() == 2 else x.reshape(-1, columns)
        if base is not None:
            base = base.contiguous().to(x.dtype)
        out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype)
        self._run(run, flat, library.TYPES[x.dtype], out, rows, base)
        return out

    def matmul_into(self, out: Tensor, x: Tensor) -> None:
        run = self._kernel_for(x)
        if run is None or out.dtype not in library.TYPES or out.stride(1) != 1:
            super().matmul_into(out, x)
        else:
            self._run(run, x, library.TYPES[out.dtype], out, out.stride(0), None)

    def _kernel_for(self, x: Tensor) -> Any:
        """The kernel, where it takes x."""
        fits = x.dtype in library.TYPES and x.is_cpu and not x.requires_grad and not library.is_traced()
        return kernel() if fits and library.allowed() else None

    def _run(self, run: Any, x: Tensor, to: int, out: Tensor, out_step: int, base: Tensor | None) -> None:
        """Writes x [M, K] @ self.T + base to rows of type `to`, which begin `out_step` numbers apart in `out`."""
        step, last = x.stride()
        if last != 1:
            x = x.contiguous()
            step = x.stride(0)
        (count, columns), kind, rounded = x.shape, library.TYPES[x.dtype], self.activations == "int8"
        apart, each, size = 0, x.element_size(), out.element_size()
        start, onto, into = x.data_ptr(), None, out.data_ptr()
        if base is not None:
            apart, onto = 0 if base.dim() == 1 else self.shape[0], base.data_ptr()
        for number, rows, packed in self.sections:
            sizes = count, rows, columns, library.threads(count * rows * columns)
            if run(number, rounded, kind, start, step, packed, onto, apart, to, into, out_step, *sizes):
                raise MemoryError(f"no memory for a matmul of {count} rows of {columns}")
            into += rows * size
            onto = None if onto is None else onto + rows * each


def joined(
    tensors: Sequence[tuple[str, Tensor]], columns: int, dtype: torch.dtype, activations: Activations
) -> BlockWeight:
    """Packs several tensors, each a type and its blocks in the file's layout, into one matrix, one below the other."""
    parts = [(kind, [raw for _, raw in own]) for kind, own in groupby(tensors, lambda each: each[0])]
    packed = [pack(kind, raws[0] if len(raws) == 1 else torch.cat(raws)) for kind, raws in parts]
    counts = tuple(sum(map(len, raws)) for _, raws in parts)
    return BlockWeight(tuple(kind for kind, _ in parts), counts, columns, dtype, activations, *packed)


def is_finite(weight: BlockWeight) -> bool:
    """Whether no weight is NaN or infinity, which only their scales can make them."""
    for kind, packed in zip(weight.types, weight.packed, strict=True):
        own, groups = TYPES[kind], weight.shape[1] // GROUP
        count = groups if not own.head else groups // _SUPER
        scales = torch.unflatten(packed, 1, (count, -1))[..., : (own.head or own.scales) * WIDTH]
        if kind == "MXFP4":
            if bool((scales > _MXFP4_MOST).any()):
                return False
        elif not bool(scales.contiguous().view(torch.float16).isfinite().all()):
            return False
    return True


def _rounded(x: Tensor) -> Tensor:
    """x [..., K] with each group of 32 rounded to int8 and multiplied back, as the kernel multiplies it."""
    groups = torch.unflatten(x.float(), -1, (-1, GROUP))
    most = groups.abs().amax(-1, keepdim=True)
    whole = (groups * torch.where(most > 0, 127 / most, 0)).round_()
    return (whole * (most / 127)).flatten(-2).to(x.dtype)


def kernel() -> Any:
    """The compiled matmul; None where it cannot be compiled or this processor is not supported."""
    return library.kernel_on(supported(), _FILE, "pardec_blocks", _ARGUMENTS)


def rows_kernel() -> Any:
    """The compiled look-up of rows, from the library of the matmul."""
    return library.kernel_on(supported(), _FILE, "pardec_block_rows", (COUNT, POINTER, POINTER, COUNT, COUNT, POINTER))


@cache
def supported() -> bool:
    """Whether blocks.c supports the processor: AVX-512, AVX2 with FMA, or 64-bit ARM."""
    return library.supported() or library.is_arm()


def pack(kind: str, raw: Tensor) -> Tensor:
    """The blocks of a file, uint8 [n, bytes of a row], in panels: uint8 [ceil(n / 32), bytes of a panel]."""
    own, count = TYPES[kind], len(raw)
    columns = raw.shape[1] // own.size * own.block
    panels = -(-count // WIDTH)
    out = room(panels * panel_bytes(kind, columns)).view(panels, -1).zero_()
    run = library.kernel_on(supported(), _PACKING, "pardec_pack", (COUNT, POINTER, COUNT, COUNT, POINTER, COUNT))
    if run is not None and library.allowed():
        raw = raw.contiguous()
        run(own.number, raw.data_ptr(), count, columns, out.data_ptr(), torch.get_num_threads())
        return out
    step = max(1, _CHUNK // columns // WIDTH) * WIDTH
    for start in range(0, count, step):
        part = raw[start : start + step]
        if short := -len(part) % WIDTH:
            part = torch.cat((part, part.new_zeros(short, raw.shape[1])))
        to = slice(start // WIDTH, (start + len(part)) // WIDTH)
        out[to] = _pack(own, _READERS[kind](torch.unflatten(part, 1, (-1, own.size))))
    return out


def panel_bytes(kind: str, columns: int) -> int:
    """Bytes of a panel of 32 rows."""
    own = TYPES[kind]
    heads = columns // (GROUP * _SUPER) * own.head * WIDTH
    return heads + columns // GROUP * (own.scales * WIDTH + own.codes)


# Of n rows: bytes before the groups of a block of 256 [n, S, head], bytes before the codes [n, G, scales], and codes
# [n, G, 32] of at most 8 bits. Scales that a row has several bytes of come number by number.
Parts = tuple[Tensor | None, Tensor, Tensor]


def _nibbles(x: Tensor) -> Tensor:
    """[n, G, 32] of bytes [n, G, 16]: the lower 4 bits of each, then the upper ones."""
    return torch.cat((x & 15, x >> 4), -1)


def _read_32(at: int) -> Callable[[Tensor], Parts]:
    """A reader of blocks of 32 codes of 4 bits after `at` bytes of scales."""
    return lambda x: (None, x[..., :at], _nibbles(x[..., at:]))


def _read_five(at: int) -> Callable[[Tensor], Parts]:
    def read(x: Tensor) -> Parts:
        fifth = _bits(x[..., at : at + 4])
        return None, x[..., :at], _nibbles(x[..., at + 4 :]) | fifth << 4

    return read


def _bits(x: Tensor) -> Tensor:
    """[..., 8 b] the bits of bytes [..., b], the lowest first."""
    return (x[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def _read_8(x: Tensor) -> Parts:
    return None, x[..., :2], x[..., 2:]


def _groups_of_k(scales: Tensor) -> Tensor:
    """[n, 8 S, 2] scales and minima of 6 bits each, of the 12 bytes [n, S, 12] of Q4_K and Q5_K."""
    first, second, third = scales[..., :4], scales[..., 4:8], scales[..., 8:]
    scale = torch.cat((first & 63, third & 15 | (first >> 6) << 4), -1)
    least = torch.cat((second & 63, third >> 4 | (second >> 6) << 4), -1)
    return torch.stack((scale, least), -1).flatten(1, 2)


def _by_32(x: Tensor) -> Tensor:
    """[n, 8 S, 32] codes of bytes [n, S, 128]: of each 32 bytes the lower bits, then the upper ones."""
    chunks = torch.unflatten(x, -1, (4, 32))
    return torch.stack((chunks & 15, chunks >> 4), -2).flatten(1, 3)


def _read_q4_k(x: Tensor) -> Parts:
    return x[..., :4], _groups_of_k(x[..., 4:16]), _by_32(x[..., 16:])


def _read_q5_k(x: Tensor) -> Parts:
    fifth = x[..., 16:48, None] >> torch.arange(8, dtype=torch.uint8) & 1  # [n, S, 32, 8]
    return x[..., :4], _groups_of_k(x[..., 4:16]), _by_32(x[..., 48:]) | fifth.transpose(-1, -2).flatten(1, 2) << 4


def _read_q6_k(x: Tensor) -> Parts:
    low = torch.unflatten(x[..., :128], -1, (2, 2, 32))  # [n, S, half, 2, 32]
    low = torch.stack((low & 15, low >> 4), -3).flatten(-3, -2)  # [n, S, half, 4, 32]
    high = (
        torch.unflatten(x[..., 128:192], -1, (2, 1, 32)) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3
    )
    codes = (low | high << 4).flatten(1, 3)
    return x[..., 208:], torch.unflatten(x[..., 192:208], -1, (8, 2)).flatten(1, 2), codes


_READERS: dict[str, Callable[[Tensor], Parts]] = {
    "Q4_0": _read_32(2),
    "Q4_1": _read_32(4),
    "Q5_0": _read_five(2),
    "Q5_1": _read_five(4),
    "Q8_0": _read_8,
    "IQ4_NL": _read_32(2),
    "MXFP4": _read_32(1),
    "Q4_K": _read_q4_k,
    "Q5_K": _read_q5_k,
    "Q6_K": _read_q6_k,
}


def _by_number(x: Tensor, size: int) -> Tensor:
    """Interleaves the 32 rows of each panel, number by number of `size` bytes: [32 P, G, b] -> [P, G, 32 b]."""
    panels = x.view(-1, WIDTH, x.shape[1], x.shape[2] // size, size)
    return panels.permute(0, 2, 3, 1, 4).flatten(2)


def _pack(own: BlockType, parts: Parts) -> Tensor:
    """Panels [P, bytes] of 32 P rows."""
    head, scales, codes = parts
    quads = codes.reshape(-1, WIDTH, codes.shape[1], 8, 4).permute(0, 2, 3, 1, 4)  # [P, G, 8, 32, 4]
    first, second = quads[:, :, :4], quads[:, :, 4:]
    if own.bits == 8:
        packed = [quads.flatten(2)]
    else:
        packed = [(first & 15 | second << 4).flatten(2)]
        at = torch.arange(4, dtype=torch.uint8)[:, None, None]
        if own.bits == 5:
            packed.append(((first >> 4) << at | (second >> 4) << at + 4).sum(2, dtype=torch.uint8).flatten(2))
        if own.bits == 6:
            packed += [((half >> 4) << 2 * at).sum(2, dtype=torch.uint8).flatten(2) for half in (first, second)]
    groups = torch.cat((_by_number(scales, 1 if head is not None else min(2, own.scales)), *packed), -1)
    if head is None:
        return groups.flatten(1)
    return torch.cat((_by_number(head, 2), torch.unflatten(groups, 1, (-1, _SUPER)).flatten(2)), -1).flatten(1)


def _dequantized(kind: str, packed: Tensor, index: Tensor, columns: int) -> Tensor:
    """Rows `index` [n] of a packed matrix as float32 [n, K]."""
    own = TYPES[kind]
    run = rows_kernel()
    if run is not None and library.allowed():
        index, out = index.contiguous(), torch.empty(len(index), columns)
        run(own.number, packed.data_ptr(), index.data_ptr(), len(index), columns, out.data_ptr())
        return out
    lane = index % WIDTH
    panel = packed[index // WIDTH]
    d: Tensor | None = None
    if own.head:
        blocks = torch.unflatten(panel, 1, (columns // (GROUP * _SUPER), -1))
        d = _of_row(blocks[..., : own.head * WIDTH], lane, 2).repeat_interleave(_SUPER, 1)
        panel = blocks[..., own.head * WIDTH :].flatten(1)
    groups = torch.unflatten(panel, 1, (columns // GROUP, -1))  # [n, G, bytes]
    q = _codes(own, groups[..., own.scales * WIDTH :], lane).double()
    if own.table:
        q = torch.tensor(own.table, dtype=torch.float64)[q.long()]
    elif own.bits == 8:
        q = torch.where(q > 127, q - 256, q)
    stored = groups[..., : own.scales * WIDTH]
    if kind == "MXFP4":
        exponent = _of_row(stored, lane, 1)
        s, m = torch.ldexp(torch.ones((), dtype=torch.float64), exponent.double() - 128), None
    elif d is None:
        s, m = _split(_of_row(stored, lane, 2).double())
    elif kind == "Q6_K":
        own_scales = _of_row(stored, lane, 1).view(torch.int8).double()
        s, m = (own_scales * d.double()).repeat_interleave(GROUP // 2, -1), None
    else:
        scale, least = _of_row(stored, lane, 1).double().chunk(2, -1)
        s, m = scale * d[..., :1].double(), -least * d[..., 1:].double()
    values = (q - own.offset) * s
    return (values if m is None else values + m).float().flatten(1)


def _of_row(x: Tensor, lane: Tensor, size: int) -> Tensor:
    """[n, G, numbers] the numbers of row `lane` [n] in bytes [n, G, b]; float16 where they have 2 bytes."""
    each = torch.unflatten(x, -1, (-1, WIDTH, size))
    own = each[torch.arange(len(lane)), :, :, lane]  # [n, G, numbers, size]
    return own.contiguous().view(torch.float16)[..., 0] if size == 2 else own[..., 0]


def _split(x: Tensor) -> tuple[Tensor, Tensor | None]:
    return (x, None) if x.shape[-1] == 1 else (x[..., :1], x[..., 1:])


def _codes(own: BlockType, x: Tensor, lane: Tensor) -> Tensor:
    """[n, G, 32] the codes of row `lane` [n] in bytes [n, G, b]."""
    rows = torch.unflatten(x, -1, (-1, WIDTH, 4))[torch.arange(len(lane)), :, :, lane]  # [n, G, b / 128, 4]
    if own.bits == 8:
        return rows.flatten(2)
    low = rows[:, :, :4]
    codes = torch.stack((low & 15, low >> 4), 2)  # [n, G, half, 4, 4]
    at = torch.arange(4, dtype=torch.uint8)[:, None]
    if own.bits == 5:
        fifth = rows[:, :, 4, None]
        codes |= torch.stack((fifth >> at & 1, fifth >> at + 4 & 1), 2) << 4
    if own.bits == 6:
        codes |= (rows[:, :, 4:, None] >> 2 * at & 3) << 4
    return codes.flatten(2)
