"""Encodes the difference between trained and initial weights in about two or three bits per weight.

Each row of a matrix is divided by its root mean square and by a step, and rounded; two rounded numbers are a byte, and
the bytes are coded by Huffman's method (zlib without its search for repetitions). Norms stay in float16. A larger step
is fewer bits and a coarser difference; with normally distributed differences 0.55 takes about 2.9 bits per weight and
loses 2.5% of their energy, 1.1 takes 1.9 bits and loses 10%. After 61.9 million tokens of training, `FINE` added 0.011
nats to the validation loss; steps of 1.1 and 2.2 on top of it made 25 MB of 47 and added 0.38 (24 held-out texts).
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from gpu_runs.smollm2 import Shape

FINE = {"matrix": 0.55, "embedding": 1.1}  # between two stretches of training
FILE_BYTES = 15 * 2**20  # bytes of one file
_MOST = 7  # rounded numbers are -7 to 7


def encode(shape: Shape, difference: dict[str, Tensor], steps: dict[str, float] = FINE) -> bytes:
    """The difference by name, of the tensors of `shape`."""
    return b"".join(_one(difference[name].float().cpu(), _step(name, steps)) for name in shape.names())


def decode(shape: Shape, content: bytes, steps: dict[str, float] = FINE) -> dict[str, Tensor]:
    """Decodes the output of `encode`, up to its losses, in float32 on the CPU."""
    found, at = {}, 0
    for name, size in shape.names().items():
        (length,) = struct.unpack_from("<I", content, at)
        found[name] = _read(content[at + 4 : at + 4 + length], size, _step(name, steps))
        at += 4 + length
    return found


def _step(name: str, steps: dict[str, float]) -> float:
    return steps["embedding" if "embed" in name else "matrix"]


def _one(values: Tensor, step: float) -> bytes:
    if values.dim() == 1:
        content = values.half().numpy().tobytes()
        return struct.pack("<I", len(content)) + content
    scale = values.square().mean(1, keepdim=True).sqrt().half()
    codes = (values / (scale.float() * step).clamp(min=1e-12)).round().clamp(-_MOST, _MOST).to(torch.int64) + _MOST + 1
    codes = codes.flatten()
    if codes.numel() % 2:
        codes = torch.cat([codes, codes.new_zeros(1)])
    pairs = (codes[::2] * 16 + codes[1::2]).to(torch.uint8).numpy().tobytes()
    coder = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    content = scale.numpy().tobytes() + coder.compress(pairs) + coder.flush()
    return struct.pack("<I", len(content)) + content


def _read(content: bytes, size: tuple[int, ...], step: float) -> Tensor:
    if len(size) == 1:
        return torch.frombuffer(bytearray(content), dtype=torch.float16).float()
    scale = torch.frombuffer(bytearray(content[: 2 * size[0]]), dtype=torch.float16).float()[:, None]
    pairs = torch.frombuffer(bytearray(zlib.decompress(content[2 * size[0] :])), dtype=torch.uint8).to(torch.int64)
    codes = torch.stack([pairs // 16, pairs % 16], 1).flatten()[: size[0] * size[1]] - _MOST - 1
    return codes.view(size).float() * scale * step


def save(folder: Path, content: bytes, about: dict[str, object]) -> list[Path]:
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


def load(folder: Path) -> tuple[bytes, dict[str, object]] | None:
    """Reads what `save` wrote; None if there is nothing."""
    files = sorted(folder.glob("state-*.bin"))
    if not files:
        return None
    whole = b"".join(file.read_bytes() for file in files)
    (length,) = struct.unpack_from("<I", whole)
    return whole[4 + length :], json.loads(whole[4 : 4 + length])
