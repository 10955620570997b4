"""A lower bound of a run's time: bytes over the bandwidth, operations over the rate of matmuls, both measured here.

    floor = sum over forwards of max(bytes / bandwidth, operations / rate)

A forward reads every weight once, the rows of the embedding that it looks up, and the keys and values that its queries
may see; operations are those of the matmuls, attention's included. The bandwidth is that of reading a buffer as large
as the weights again and again, so that weights that fit the processor's cache are not held to the bandwidth of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.kernels.matmul import matmul
from pardec.models.layers.quantize import weight_bytes

from .clock import settle, timer
from .parts import Fed

_LARGEST, _SMALLEST = 1 << 28, 1 << 20  # bytes of the buffer that is read
_TRIALS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """The measured speed of the device: the best of a few trials."""

    bandwidth: float  # bytes per second
    operations: float  # a second, in matmuls of the dtype
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that one run can take."""

    bytes: float
    operations: float
    seconds: float


def best(run: Callable[[], Any], device: torch.device, *, least: float = 0.02) -> float:
    """Seconds of one `run`, the best of a few trials of at least `least` seconds each."""
    now, fastest, count = timer(device)[1], float("inf"), 1
    run()
    for _ in range(_TRIALS):
        while True:
            settle(device)
            start = now()
            for _ in range(count):
                run()
            settle(device)
            seconds = now() - start
            if seconds >= least:
                break
            count *= 2
        fastest = min(fastest, seconds / count)
    return fastest


@torch.inference_mode()
def rates(device: torch.device, dtype: torch.dtype, weight_bytes: int) -> Rates:
    """Measures a device with torch's current number of threads."""
    size = min(max(weight_bytes, _SMALLEST), _LARGEST)
    sizes = (4096, 8192) if device.type == "cuda" else (256, 512, 1024)
    fastest = 0.0
    for n in sizes:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty(n, n, device=device, dtype=dtype)
        weight = nn.Parameter(b, requires_grad=False)
        library = best(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device)  # type: ignore[misc]
        ours = best(lambda a=a, weight=weight: matmul(a, weight), device)  # type: ignore[misc]
        fastest = max(fastest, 2 * n**3 / min(library, ours))
    return Rates(bandwidth(device, size), fastest, size)


@torch.inference_mode()
def bandwidth(device: torch.device, size: int) -> float:
    """Bytes per second of reading a buffer of `size` bytes repeatedly or of copying it, whichever is higher."""
    buffer = torch.ones(size // 4, device=device)
    target = torch.empty_like(buffer)
    read_s, copy_s = best(lambda: buffer.sum(), device), best(lambda: target.copy_(buffer), device)
    return max(buffer.nbytes / read_s, 2 * buffer.nbytes / copy_s)


def floor(decoder: Decoder, fed: Sequence[Fed], heads: int, measured: Rates) -> Floor:
    """The floor of the forwards `fed`, with `heads` rows fed to the head in total."""
    size = decoder.embed.weight.element_size()
    each = weight_bytes(decoder.parameters()) / sum(weight.numel() for weight in decoder.parameters())
    share = heads / max(len(fed), 1)
    traffic = [_bytes(decoder.config, forward, size, each) for forward in fed]
    operations = [_operations(decoder.config, forward, share) for forward in fed]
    pairs = zip(traffic, operations, strict=True)
    seconds = sum(max(b / measured.bandwidth, o / measured.operations) for b, o in pairs)
    return Floor(sum(traffic), sum(operations), seconds)


def _layer(config: DecoderConfig) -> tuple[int, int]:
    """The numbers of parameters in a layer's fused QKV matrix, and in its other matrices."""
    heads = config.heads * config.head_dim
    first = (heads + 2 * config.kv_heads * config.head_dim) * config.width
    return first, heads * config.width + 3 * config.mlp_width * config.width


def _bytes(config: DecoderConfig, fed: Fed, size: int, each: float) -> float:
    weights = config.layers * sum(_layer(config)) + config.vocab * config.width
    embedding = 0 if config.tied else fed.rows * fed.width * config.width
    kv = 2 * config.kv_heads * config.head_dim * fed.extent * fed.rows * config.layers if fed.cached else 0
    return each * weights + size * (embedding + kv)


def _operations(config: DecoderConfig, fed: Fed, heads: float) -> float:
    first, others = _layer(config)
    queries = fed.rows * fed.width
    full = (config.layers - 1) * queries + fed.last  # those that pass through a whole layer
    attention = 4 * config.heads * config.head_dim * fed.extent * full
    return 2 * (first * config.layers * queries + others * full + config.vocab * config.width * heads) + attention
