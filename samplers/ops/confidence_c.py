"""The argmax of each row of logits and its probability, by a kernel in C."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pardec.models.kernels.cpu import library
from pardec.models.kernels.cpu.library import COUNT, POINTER

_FILE = Path(__file__).with_name("confidence.c")
_ARGUMENTS = (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT)


def compiled() -> bool:
    """Whether there is a kernel: its file may not compile where others do."""
    return library.kernel(_FILE, "pardec_greedy", _ARGUMENTS) is not None


def greedy_c(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The argmax [...] of float32 `logits` [..., V] on a CPU, the lowest id on ties, and its probability."""
    logits = logits.contiguous()
    ids, probability = torch.empty(logits.shape[:-1], dtype=torch.int64), torch.empty(logits.shape[:-1])
    run = library.kernel(_FILE, "pardec_greedy", _ARGUMENTS)
    run(
        logits.data_ptr(),
        ids.data_ptr(),
        probability.data_ptr(),
        ids.numel(),
        logits.shape[-1],
        library.threads(logits.numel()),
    )
    return ids, probability
