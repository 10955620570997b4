"""What the host has to read, in one transfer: each of its own would wait for the device once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def hosted(parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors as arrays, under their names: on a CPU their own memory, elsewhere copies that came together."""
    tensors = list(parts.values())
    if _shared(tensors):
        return {name: tensor.numpy() for name, tensor in parts.items()}
    whole = torch.contiguous_format  # a single row may have any stride, which `view` minds
    packed = torch.cat([tensor.clone(memory_format=whole).view(-1).view(torch.uint8) for tensor in tensors])
    ends = np.cumsum([tensor.nbytes for tensor in tensors])
    pieces = np.split(packed.cpu().numpy(), ends[:-1])
    return {
        name: piece.view(torch.empty(0, dtype=tensor.dtype).numpy().dtype).reshape(tensor.shape)
        for (name, tensor), piece in zip(parts.items(), pieces, strict=True)
    }


def _shared(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)
