"""The tensors of a GGUF file under their published names, read from the file itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ModelError
from .contents import contents
from .header import library

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CHUNK = 1 << 24  # values dequantized at a time


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a GGUF file."""

    name: str  # its name in the file
    file: Path
    shape: tuple[int, ...]
    kind: str  # "F32", "Q4_1", ...
    start: int
    size: int  # bytes
    heads: int | None  # heads whose rows lie interleaved in the file; None: rows are in the published order

    @property
    def dtype(self) -> torch.dtype:
        """The type of its values once they are read: float32 holds every value that quantized blocks have."""
        return _PLAIN.get(self.kind, torch.float32)

    def raw(self) -> Tensor:
        """The file's bytes, uint8 [rows, bytes of a row], with the rows in the published order.

        The matrices of a stack follow each other. A vector has a row per value.
        """
        content = np.empty(self.size, np.uint8)
        with self.file.open("rb", buffering=0) as handle:
            handle.seek(self.start)
            view, read = content.data, 0
            while read < self.size:  # one call reads 2 GiB at most
                more = handle.readinto(view[read:])
                if not more:
                    raise ModelError(f"{self.file} ends within tensor {self.name!r}", "download or copy the file again")
                read += more
        rows = content.reshape(prod(self.shape[:-1]) if self.shape[1:] else self.shape[0], -1)
        return torch.from_numpy(rows if self.heads is None else _published_order(rows, self.heads))

    def values(self) -> Tensor:
        """The tensor, of `dtype`; quantized blocks are dequantized by the package gguf."""
        raw = self.raw()
        if self.kind in _PLAIN:
            return raw.view(_PLAIN[self.kind]).view(self.shape)
        out = torch.empty(self.shape).view(-1, self.shape[-1])
        rows, step = raw.view(len(out), -1).numpy(), max(1, _CHUNK // self.shape[-1])
        for start in range(0, len(rows), step):
            out[start : start + step] = torch.from_numpy(self._dequantized(rows[start : start + step]))
        return out.view(self.shape)

    def _dequantized(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        gguf = library(self.file)
        try:
            with np.errstate(all="ignore"):
                values: NDArray[Any] = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[self.kind])
        except NotImplementedError as error:
            raise ModelError(
                f"{self.file}: tensor {self.name} is of type {self.kind}, which the package gguf cannot dequantize",
                "use a file of another quantization, such as Q8_0 or Q4_K_M",
            ) from error
        return values.astype(np.float32, copy=False)


def file_tensors(file: Path) -> Iterator[tuple[str, FileTensor]]:
    """Every tensor of a model, with its published name. Raises ModelError for a file that cannot be read faithfully."""
    whole = Path(os.path.abspath(file))
    for target, stored in contents(file).tensors.items():
        tensor = FileTensor(stored.name, whole, stored.shape, stored.kind, stored.start, stored.size, target.heads)
        yield target.name, tensor


def _published_order(rows: NDArray[np.uint8], heads: int) -> NDArray[np.uint8]:
    """Rows of Llama's queries and keys as published: GGUF files have the two halves of each head interleaved."""
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
