"""The likeliest ids of each row of logits and their probabilities, computed by C kernels."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pardec.models.kernels.cpu import library
from pardec.models.kernels.cpu.library import COUNT, POINTER

_FILE = Path(__file__).with_name("confidence.c")
_ARGUMENTS = (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT)
_LIKELIEST = (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, COUNT)
_SHARES = (POINTER, POINTER, POINTER, POINTER, COUNT, COUNT)


def compiled() -> bool:
    """Whether the kernels exist: their file may fail to compile although others do."""
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


def likeliest_c(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities [..., count] of the highest float32 `logits` [..., V] on a CPU, and their indices."""
    logits = logits.contiguous()
    width = logits.shape[-1]
    shares = torch.empty(*logits.shape[:-1], count)
    ids = torch.empty(shares.shape, dtype=torch.int64)
    run = library.kernel(_FILE, "pardec_likeliest", _LIKELIEST)
    threads = library.threads(logits.numel())
    run(logits.data_ptr(), ids.data_ptr(), shares.data_ptr(), logits.numel() // width, width, count, threads)
    return shares, ids


def probability_c(logits: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """[N]: the probability of each of `ids` [N] in row `rows` [N] of float32 `logits` [..., V] on a CPU."""
    logits, rows, ids = logits.contiguous(), rows.contiguous(), ids.contiguous()
    shares = torch.empty(len(ids))
    run = library.kernel(_FILE, "pardec_shares", _SHARES)
    run(logits.data_ptr(), rows.data_ptr(), ids.data_ptr(), shares.data_ptr(), len(ids), logits.shape[-1])
    return shares
