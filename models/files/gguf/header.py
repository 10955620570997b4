"""Reads the header of a GGUF file: metadata and the place of each tensor, all of it checked.

The `gguf` library knows the tensor types and dequantizes them. The header is read here, since the library goes on for
as many entries as a file says that it has, whether or not they are there.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import AGAIN, ModelError, install, unreadable
from . import MAGIC

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_AXES = 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the file. Its shape is as torch has it: the last axis lies contiguous."""

    name: str
    shape: tuple[int, ...]
    kind: str  # "F32", "Q4_1", ...
    start: int
    size: int  # bytes

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of a file, which stays mapped."""

    file: Path
    content: mmap.mmap
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def raw(self, tensor: StoredTensor) -> NDArray[np.uint8]:
        """The bytes of a tensor, [rows, bytes of a row]."""
        data = np.frombuffer(self.content, np.uint8, tensor.size, tensor.start)
        return data.reshape(tensor.count // tensor.shape[-1], -1)


def library(file: Path) -> Any:
    """The `gguf` library. Raises ModelError, with the command that installs it, where it is missing."""
    try:
        import gguf
    except ImportError as error:
        raise ModelError(f"{file} is a GGUF file, and reading those needs the package gguf", install("gguf")) from error
    return gguf


def read_header(file: Path) -> Header:
    """Metadata and tensors. Raises ModelError for a file that is no GGUF, is damaged, or is cut short."""
    try:
        with file.open("rb") as handle:
            content = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"{file} is empty", AGAIN) from error
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from error
    if content[:4] != MAGIC:
        raise unreadable(file, f"is not a GGUF file: it begins with {bytes(content[:4])!r}")
    reader = _Reader(file, content)
    version = reader.scalar("I")
    if version & 0xFFFF == 0:
        raise ModelError(f"{file} was written for big-endian machines", "use the usual, little-endian file")
    if version not in (2, 3):
        raise ModelError(f"{file} is of GGUF version {version}, and only 2 and 3 are known")
    tensors, fields = reader.scalar("Q"), reader.scalar("Q")
    metadata = reader.metadata(fields)
    return Header(file, content, metadata, reader.tensors(tensors, metadata.get("general.alignment", 32)))


class _Reader:
    """Reads a header from front to back."""

    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self.file, self.content, self.at = file, content, len(MAGIC)

    def fail(self, problem: str) -> ModelError:
        return ModelError(f"{self.file} is damaged: {problem}", AGAIN)

    def advance(self, size: int) -> int:
        """Consumes the next `size` bytes, and returns where they begin."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.content):
            raise ModelError(f"{self.file} is damaged or cut short: it ends within its header", AGAIN)
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.content, self.advance(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        size = self.scalar("Q")
        start = self.advance(size)
        try:
            return self.content[start : start + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"a text at byte {start} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise self.fail(f"a value is of the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            return [
                self.text() for _ in range(count)
            ]  # each takes 8 bytes, so a count too large ends at the file's end
        if kind not in _SCALARS:
            raise self.fail(f"a list holds values of the type {kind}")
        item = np.dtype("<" + _SCALARS[kind] if kind != 7 else "?")
        values: list[Any] = np.frombuffer(self.content, item, count, self.advance(count * item.itemsize)).tolist()
        return values

    def metadata(self, count: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for _ in range(count):
            name = self.text()
            if name in fields:
                raise self.fail(f"the key {name!r} is in it twice")
            fields[name] = self.value(self.scalar("I"))
        return fields

    def tensors(self, count: int, alignment: Any) -> dict[str, StoredTensor]:
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.fail(f"general.alignment is {alignment!r}")
        entries = [(self.text(), self._shape(), self.scalar("I"), self.scalar("Q")) for _ in range(count)]
        begin = -(-self.at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, number, offset in entries:
            if name in tensors:
                raise self.fail(f"tensor {name!r} is in it twice")
            kind, size = self._size(name, shape, number)
            if begin + offset + size > len(self.content):
                missing = begin + offset + size - len(self.content)
                raise ModelError(f"{self.file} is cut short: tensor {name!r} misses {missing} bytes", AGAIN)
            tensors[name] = StoredTensor(name, shape, kind, begin + offset, size)
        return tensors

    def _shape(self) -> tuple[int, ...]:
        axes = self.scalar("I")
        if not 0 < axes <= _AXES:
            raise self.fail(f"a tensor has {axes} axes")
        shape = tuple(self.scalar("Q") for _ in range(axes))[::-1]
        if 0 in shape:
            raise self.fail("a tensor is empty")
        return shape

    def _size(self, name: str, shape: tuple[int, ...], number: int) -> tuple[str, int]:
        """A tensor's type and bytes."""
        constants = library(self.file).constants
        try:
            kind = constants.GGMLQuantizationType(number)
        except ValueError:
            raise ModelError(
                f"{self.file}: tensor {name!r} is of type {number}, which the installed package gguf does not know",
                "pip install --upgrade gguf",
            ) from None
        block, size = constants.GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise self.fail(
                f"rows of tensor {name!r} have {shape[-1]} values, and {kind.name} stores {block} at a time"
            )
        return kind.name, math.prod(shape) // block * size
