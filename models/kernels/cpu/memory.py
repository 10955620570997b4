"""Memory for packed weights and for caches, in huge pages where the system has them; returns free memory.

A matmul of one row reads all weights once. With pages of 4 KiB, looking up their addresses slows that by a third; the
attention of one row over the caches of all layers, too.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PAGE = 1 << 21  # bytes of a huge page
_CHUNK = 1 << 25  # bytes that smaller matrices share
_LINE = 64  # bytes of a cache line
_HUGE = 14  # MADV_HUGEPAGE

_lock = threading.Lock()
_chunk: Tensor | None = None
_used = 0


def room(size: int) -> Tensor:
    """[size] uint8, not initialised, at the start of a cache line."""
    global _chunk, _used
    if size > _CHUNK // 2:
        return _advised(size)
    with _lock:
        start = -(-_used // _LINE) * _LINE
        if _chunk is None or start + size > len(_chunk):
            _chunk, start = _advised(_CHUNK), 0
        _used = start + size
        return _chunk[start:_used]


def rooms(sizes: Sequence[int]) -> list[Tensor]:
    """[size] uint8 each, not initialised, at the start of a cache line, side by side in blocks of 32 MiB.

    A block is freed with the last of its rooms.
    """
    starts, whole = list[tuple[int, int]](), [0]  # of each room: the number of its block, and where it begins there
    for size in sizes:
        start = -(-whole[-1] // _LINE) * _LINE
        if start and start + size > _CHUNK:
            whole, start = [*whole, 0], 0
        starts.append((len(whole) - 1, start))
        whole[-1] = start + size
    blocks = [_advised(size) if size > _PAGE else torch.empty(size, dtype=torch.uint8) for size in whole]
    # `data` counts its own writes, which autograd checks; those of views would count for all.
    return [blocks[at][start : start + size].data for (at, start), size in zip(starts, sizes, strict=True)]


def _advised(size: int) -> Tensor:
    """[size] uint8 from the start of a huge page on."""
    with torch.inference_mode(False):  # so that memory made in that mode can be written outside it
        whole = torch.empty(size + _PAGE, dtype=torch.uint8, device="cpu")
    part = whole[-whole.data_ptr() % _PAGE :][:size]
    if (advise := _madvise()) is not None:
        advise(part.data_ptr(), size, _HUGE)  # where the system refuses, pages stay small
    return part


@cache
def _madvise() -> Any:
    """The function of the C library; None where there is none."""
    run = getattr(ctypes.CDLL(None), "madvise", None)
    if run is not None:
        run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return run


def return_free_memory() -> None:
    """Gives the system what the C heap holds and nothing uses, where the C library can (glibc).

    Reading a tokenizer of 49,000 tokens leaves 25 MB there, a quarter of what a small packed model takes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))
