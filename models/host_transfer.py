"""The only crossing between host and device in a loop: uploads without waiting, downloads in one transfer, counts.

A GPU works ahead of the host. An upload from pinned memory leaves it alone; a download waits for everything before it,
but only when it is read. On a CPU both are views of the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from threading import local

import numpy as np
import torch
from torch import Tensor

from .cuda_graphs.capture import CaptureError

_DEVICE = attrgetter("device.type")
_PINNING = {"cuda"}  # devices that copy from pinned memory while the host goes on


@dataclass(slots=True)
class Transfers:
    """How often values crossed between host and device."""

    uploads: int = 0
    blocking_uploads: int = 0  # the uploads that the host waited for
    downloads: int = 0


_counters: list[Transfers] = []


@contextmanager
def counted() -> Iterator[Transfers]:
    """Counts the transfers within the block."""
    transfers = Transfers()
    _counters.append(transfers)
    try:
        yield transfers
    finally:
        _counters[:] = [other for other in _counters if other is not transfers]


class DeviceColumn:
    """A host array [R] of a captured step, whose `values` are on the device already: `upload` returns them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.read = False


_state = local()


@contextmanager
def refused() -> Iterator[None]:
    """Within the block transfers by this thread raise CaptureError: a graph would repeat them with old values."""
    _state.refused = True
    try:
        yield
    finally:
        _state.refused = False


def _demand_transfers(what: str) -> None:
    if getattr(_state, "refused", False):
        raise CaptureError(f"a stage {what}")


def upload(values: np.ndarray | Tensor | DeviceColumn, device: torch.device) -> Tensor:
    """`values` of the host on `device`; the host does not wait. On a CPU they share memory.

    A tensor of another device is copied by that device, and one that is on `device` already is returned.
    """
    if isinstance(values, np.ndarray):
        on_host = torch.from_numpy(values)
    elif isinstance(values, DeviceColumn):
        values.read = True
        return values.values
    else:
        on_host = values
    if device.type == "cpu" or on_host.device.type != "cpu":
        return on_host.to(device)
    _demand_transfers("reads values of the host")
    return _leaving(on_host, device).to(device, non_blocking=device.type in _PINNING)


def refill(target: Tensor, values: np.ndarray) -> None:
    """Replaces the contents of `target` by `values` of the host, which does not wait."""
    source = torch.from_numpy(values)
    if target.device.type != "cpu":
        source = _leaving(source, target.device)
    target.copy_(source, non_blocking=target.device.type in _PINNING)


def _leaving(values: Tensor, device: torch.device) -> Tensor:
    """`values` in memory from which `device` can copy them, pinned for a GPU; counts an upload."""
    pins = device.type in _PINNING
    for transfers in _counters:
        transfers.uploads += 1
        transfers.blocking_uploads += not pins
    return values.pin_memory() if pins else values


class Download:
    """Tensors on their way to the host, all in one transfer; on a CPU they share memory."""

    def __init__(self, parts: Mapping[str, Tensor]) -> None:
        self.parts, tensors = parts, list(parts.values())
        self._packed: Tensor | None = None
        if _shared(tensors):
            return
        _demand_transfers("needs the host")
        whole = torch.contiguous_format  # a single row may have any stride, which `view` minds
        if len(tensors) == 1 and tensors[0].dim() == 1 and tensors[0].stride(0) == 1:
            packed = tensors[0].view(torch.uint8)
        else:
            each = [tensor.clone(memory_format=whole).view(-1).view(torch.uint8) for tensor in tensors]
            packed = each[0] if len(each) == 1 else torch.cat(each)
        for transfers in _counters:
            transfers.downloads += 1
        if packed.device.type in _PINNING:
            self._packed = packed.to("cpu", non_blocking=True)  # to pinned memory
        else:
            self._packed = packed.cpu()
        self._arrived = torch.cuda.Event() if packed.is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> dict[str, np.ndarray]:
        """The arrays, by name; waits until they are there."""
        if self._packed is None:
            return {name: tensor.numpy() for name, tensor in self.parts.items()}
        if self._arrived is not None:
            self._arrived.synchronize()
        ends = np.cumsum([tensor.nbytes for tensor in self.parts.values()])
        chunks = np.split(self._packed.numpy(), ends[:-1])
        return {
            name: chunk.view(torch.empty(0, dtype=tensor.dtype).numpy().dtype).reshape(tensor.shape)
            for (name, tensor), chunk in zip(self.parts.items(), chunks, strict=True)
        }


def to_host(parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as arrays, by name, in one transfer that the host waits for."""
    return Download(parts).read()


def download(values: Tensor) -> np.ndarray:
    """One tensor as an array, in a transfer that the host waits for; on a CPU it shares memory."""
    return values.numpy() if values.device.type == "cpu" else to_host({"values": values})["values"]


def _shared(tensors: Sequence[Tensor]) -> bool:
    return {"cpu"}.issuperset(map(_DEVICE, tensors))
