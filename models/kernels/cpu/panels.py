"""Weights in panels: matmuls of few rows with matrices larger than the processor's caches, at the speed of memory.

    panels[p, k, j] = W[48 p + j, k]

PyTorch's matmuls of 2 to 48 float32 rows take as long as those of 64, since the matrix comes from memory before its
arithmetic begins; here the two go on at once. A sum is made in one order whatever else is multiplied, so that a row
gives the same bits alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from . import library
from .library import COUNT, POINTER, STEP

WIDTH = 48  # rows of a panel, as panels.c has it
LEAST = 2**19  # entries of a matrix, below which a cache may hold it and PyTorch's matmul is as fast
_FILE = Path(__file__).with_suffix(".c")
_ARGUMENTS = (POINTER, STEP, POINTER, POINTER, STEP, POINTER, COUNT, COUNT, COUNT, COUNT)


class Panels(Tensor):
    """A matrix [N, K] of float32 weights in panels, on a CPU. Other operations of PyTorch read it as a dense matrix."""

    packed: Tensor  # [ceil(N / 48), K, 48], zero behind the last row

    @staticmethod
    def __new__(cls, packed: Tensor, rows: int) -> Panels:
        weight: Panels = Tensor._make_wrapper_subclass(
            cls, (rows, packed.shape[1]), dtype=packed.dtype, device=packed.device
        )
        weight.packed = packed
        return weight

    def __init__(self, packed: Tensor, rows: int) -> None: ...

    @property
    def dense(self) -> Tensor:
        """[N, K], row by row."""
        return rearrange(self.packed, "p k j -> (p j) k")[: self.shape[0]]

    def fill(self, source: Tensor, start: int = 0) -> None:
        """Copies `source` [n, K] to the rows from `start` on."""
        row = 0
        while row < len(source):
            panel, first = divmod(start + row, WIDTH)
            part = source[row : row + WIDTH - first]
            self.packed[panel, :, first : first + len(part)] = part.t()
            row += len(part)

    def matmul(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        """base + x [..., K] @ self.T: [..., N]; `base` is of that shape, or a bias [N]."""
        run = kernel()
        if run is None or x.dtype != torch.float32 or not x.is_cpu or x.requires_grad or library.is_traced():
            out = F.linear(x, self.dense)
            return out if base is None else out + base
        rows, length = self.shape
        flat = x.reshape(-1, length)
        if flat.stride(1) != 1:
            flat = flat.contiguous()
        out = torch.empty((*x.shape[:-1], rows))
        count, start, apart = flat.shape[0], None, 0
        if base is not None:
            base = base.contiguous()
            start, apart = base.data_ptr(), 0 if base.dim() == 1 else rows
        ends = out.data_ptr(), count, rows, length, library.threads(count * self.numel())
        if run(flat.data_ptr(), flat.stride(0), self.packed.data_ptr(), start, apart, *ends):
            raise MemoryError(f"no memory for a matmul of {count} rows of {length}")
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Panels:
        return _rebuild(self.packed.clone(), *self._rest)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self.packed, *self._rest)

    @property
    def _rest(self) -> tuple[int, bool]:
        return len(self), isinstance(self, nn.Parameter)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Panels(args[0].packed, args[0].shape[0])
        if func._schema.is_mutable and isinstance(args[0], Panels):
            raise NotImplementedError(f"{func} would write to weights in panels, which are only read")
        args, kwargs = tree_map_only(Panels, lambda panels: panels.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def _rebuild(packed: Tensor, rows: int, parameter: bool) -> Panels:
    weight = Panels(packed, rows)
    return nn.Parameter(weight, requires_grad=False) if parameter else weight  # type: ignore[return-value]


def is_faster(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether matmuls with such weights are faster in panels."""
    large = len(shape) == 2 and shape[0] * shape[1] >= LEAST
    fits = large and dtype == torch.float32 and device.type == "cpu"
    return fits and library.allowed() and kernel() is not None


def empty(rows: int, columns: int) -> Panels:
    """Memory for a matrix of so many rows and columns."""
    packed = torch.empty(-(-rows // WIDTH), columns, WIDTH, dtype=torch.float32, device="cpu")
    packed[-1, :, (rows - 1) % WIDTH + 1 :] = 0
    return Panels(packed, rows)


def kernel() -> Any:
    """The compiled matmul; None where there is none."""
    return library.kernel(_FILE, "pardec_product", _ARGUMENTS)
