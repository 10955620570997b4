"""Copies several tensors to the host in one transfer, since each transfer waits for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

_DEVICE = attrgetter("device.type")


def to_host(parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as arrays, by name: on a CPU they share memory, elsewhere they are copies of one transfer."""
    tensors = list(parts.values())
    if _shared(tensors):
        return {name: tensor.numpy() for name, tensor in parts.items()}
    whole = torch.contiguous_format  # a single row may have any stride, which `view` minds
    packed = torch.cat([tensor.clone(memory_format=whole).view(-1).view(torch.uint8) for tensor in tensors])
    ends = np.cumsum([tensor.nbytes for tensor in tensors])
    chunks = np.split(packed.cpu().numpy(), ends[:-1])
    return {
        name: chunk.view(torch.empty(0, dtype=tensor.dtype).numpy().dtype).reshape(tensor.shape)
        for (name, tensor), chunk in zip(parts.items(), chunks, strict=True)
    }


def _shared(tensors: Sequence[Tensor]) -> bool:
    return {"cpu"}.issuperset(map(_DEVICE, tensors))
