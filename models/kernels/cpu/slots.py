"""Moves slots of all layers' keys and values in one call, where PyTorch needs four operations per layer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from . import library
from .library import COUNT, POINTER

_FILE = Path(__file__).with_suffix(".c")
_ARGUMENTS = (POINTER, POINTER, COUNT, POINTER, POINTER, COUNT)


def moves(stores: Sequence[Tensor]) -> bool:
    """Whether there is a kernel, all `stores` are on the CPU, and nothing traces PyTorch's operations."""
    here = all(store.device.type == "cpu" for store in stores)
    return here and library.allowed() and not library.is_traced() and _kernel() is not None


def move_c(stores: Sequence[Tensor], source: Tensor, target: Tensor) -> None:
    """Copies slots `source` [n] int64 to `target` [n] of each of `stores` [B, S, K, D], all reads before all writes.

    Slots are counted through all rows, which are one dimension with them in memory; the last dimension lies together.
    """
    source, target = source.contiguous(), target.contiguous()
    shapes: list[int] = []
    for store in stores:
        size = store.element_size()
        _, slot, head, _ = store.stride()
        shapes += (slot * size, store.shape[2], head * size, store.shape[3] * size)
    addresses = (ctypes.c_void_p * len(stores))(*(store.data_ptr() for store in stores))
    steps = (ctypes.c_ssize_t * len(shapes))(*shapes)
    if _kernel()(addresses, steps, len(stores), source.data_ptr(), target.data_ptr(), len(source)):
        raise MemoryError(f"no memory for {len(source)} slots")


def _kernel() -> Any:
    return library.kernel(_FILE, "pardec_move", _ARGUMENTS)
