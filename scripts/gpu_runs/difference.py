"""Encodes the difference between trained and initial weights in two or three bits per weight.

A weight is an integer times the step of its row and the step of its column; steps are powers of 2**(1/8), and the
integers are coded by `entropy.py` with the distribution of their class, which is a sum of numbers of row and column.
Between two stretches of training a row's step is `steps` times its root mean square and the columns have none: 0.55
takes about 2.9 bits per weight and loses 2.5% of the energy of normally distributed differences, 1.1 takes 1.9 and
loses 10%. `feedback.py` chooses both steps, and the integers, for a finished training.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_runs import entropy
from gpu_runs.smollm2 import Shape

FINE = {"matrix": 0.55, "embedding": 1.1}  # steps, over a row's root mean square, between two stretches of training
FILE_BYTES = 15 * 10**6  # bytes of one file
MOST = 31  # integers are -31 to 31
_CLASSES, _PER_OCTAVE, _UNIT = 40, 3, 24  # classes of root mean squares 2**(-24 / 3) to 2**(15 / 3)


@dataclass(frozen=True)
class Coded:
    """A matrix as integers, int8 [R, C], whose step sizes are 2**((columns - rows) / 8): int16 [R] and [C]."""

    integers: Tensor
    rows: Tensor
    columns: Tensor

    def values(self) -> Tensor:
        """The matrix, float32 [R, C]."""
        return self.integers.float() * power(-self.rows)[:, None] * power(self.columns)


def power(exponents: Tensor) -> Tensor:
    """2**(1/8) to the exponents, float32, from a table of Python's own powers: the same on every machine."""
    table = torch.tensor([2.0 ** (at / 8) for at in range(-255, 128)])
    return table[exponents.long() + 255]


def encode(shape: Shape, difference: dict[str, Tensor], steps: dict[str, float] = FINE) -> bytes:
    """The difference by name, of the tensors of `shape`, each number rounded to the next step."""
    return pack(shape, {name: _rounded(difference[name].float().cpu(), step_of(name, steps)) for name in shape.names()})


def step_of(name: str, steps: dict[str, float]) -> float:
    return steps["embedding" if "embed" in name else "matrix"]


def _rounded(values: Tensor, step: float) -> Tensor | Coded:
    if values.dim() == 1:
        return values
    rows = row_exponents(values.square().mean(1).sqrt() * step, values)
    return Coded(
        (values / power(-rows)[:, None]).round().clamp(-MOST, MOST).to(torch.int8),
        rows,
        torch.zeros(values.shape[1], dtype=torch.int16),
    )


def row_exponents(steps: Tensor, values: Tensor) -> Tensor:
    """The exponents nearest to `steps` [R] at which no value [R, C] needs a larger integer than there is."""
    least = values.abs().amax(1) / MOST
    wanted, most = (-8 * part.clamp(min=2.0**-31, max=1).log2() for part in (steps, least))
    return torch.minimum(wanted.round(), most.floor()).to(torch.int16)


def pack(shape: Shape, tensors: dict[str, Tensor | Coded]) -> bytes:
    """The bytes of all tensors: sizes of the parts, frequencies, vectors and numbers of rows and columns, integers."""
    sides, integers, classes = [], [], []
    for name in shape.names():
        tensor = tensors[name]
        if isinstance(tensor, Tensor):
            sides.append(tensor.half().numpy().tobytes())
            continue
        rows, columns = _magnitudes(tensor.integers)
        sides += [part.to(torch.int8).numpy().tobytes() for part in (rows, columns, tensor.columns)]
        sides.append(tensor.rows.to(torch.uint8).numpy().tobytes())
        integers.append((tensor.integers.flatten() + MOST).to(torch.uint8).numpy())
        classes.append(_classes(rows, columns))
    symbols, kinds = np.concatenate(integers), np.concatenate(classes)
    counts = np.bincount(kinds.astype(np.int64) * (2 * MOST + 1) + symbols, minlength=_CLASSES * (2 * MOST + 1))
    table = entropy.frequencies(counts.reshape(_CLASSES, -1))
    side = zlib.compress(table.astype("<u2").tobytes() + b"".join(sides), 9)
    return struct.pack("<I", len(side)) + side + entropy.encode(symbols, kinds, table)


def decode(shape: Shape, content: bytes) -> dict[str, Tensor]:
    """Decodes the output of `encode` and `pack`, up to their losses, in float32 on the CPU."""
    (length,) = struct.unpack_from("<I", content)
    side, at = zlib.decompress(content[4 : 4 + length]), 0

    def taken(count: int, kind: str) -> Tensor:
        nonlocal at
        part = np.frombuffer(side, kind, count, at)
        at += part.nbytes
        return torch.from_numpy(part.astype(kind.replace("u2", "i4")))

    table = taken(_CLASSES * (2 * MOST + 1), "<u2").view(_CLASSES, -1).numpy().astype(np.int64)
    found: dict[str, Tensor] = {}
    parts, classes = dict[str, tuple[Tensor, Tensor]](), []
    for name, size in shape.names().items():
        if len(size) == 1:
            found[name] = taken(size[0], "<f2").float()
            continue
        classes.append(_classes(taken(size[0], "i1"), taken(size[1], "i1")))
        columns = taken(size[1], "i1")
        parts[name] = taken(size[0], "u1"), columns
    integers = torch.from_numpy(entropy.decode(content[4 + length :], np.concatenate(classes), table))
    first = 0
    for name, (rows, columns) in parts.items():
        size = shape.names()[name]
        last = first + math.prod(size)
        one = (integers[first:last].view(size).short() - MOST).to(torch.int8)
        found[name], first = Coded(one, rows.short(), columns.short()).values(), last
    return found


def _magnitudes(integers: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers [R] and [C] whose sums are the classes of integers: root mean squares in thirds of octaves."""
    squares = integers.float().square()
    columns = torch.ones(squares.shape[1])
    for _ in range(3):
        rows = (squares / columns).mean(1).clamp(min=1e-4)
        columns = (squares / rows[:, None]).mean(0).clamp(min=1e-3)
    of_rows, of_columns = ((part.log2() * _PER_OCTAVE / 2).round() for part in (rows, columns))
    return of_rows.clamp(-_UNIT, _CLASSES - _UNIT), of_columns


def _classes(rows: Tensor, columns: Tensor) -> np.ndarray:
    """The class of each integer of a matrix, uint8 [R * C]."""
    sums = rows.short()[:, None] + columns.short() + _UNIT
    return sums.clamp(0, _CLASSES - 1).to(torch.uint8).flatten().numpy()


def save(folder: Path, content: bytes, about: dict[str, Any]) -> list[Path]:
    """Writes `state-1.bin` and so on, each small enough to come back; the first begins with `about` as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("state-*.bin"):
        old.unlink()
    head = json.dumps(about).encode()
    whole = struct.pack("<I", len(head)) + head + content
    files = []
    for number, at in enumerate(range(0, len(whole), FILE_BYTES), 1):
        files.append(folder / f"state-{number}.bin")
        files[-1].write_bytes(whole[at : at + FILE_BYTES])
    return files


def load(folder: Path) -> tuple[bytes, dict[str, Any]] | None:
    """Reads what `save` wrote; None if there is nothing."""
    files = sorted(folder.glob("state-*.bin"))
    if not files:
        return None
    whole = b"".join(file.read_bytes() for file in files)
    (length,) = struct.unpack_from("<I", whole)
    return whole[4 + length :], json.loads(whole[4 : 4 + length])
