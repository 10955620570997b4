"""The number of CPU threads that decode.

The steps of a small model are many short matmuls. Two threads on two idle cores make them a little faster; where the
cores have other work, or are many, waiting for each other at every matmul takes longer than the matmul.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 4_000_000  # with fewer parameters, one thread decodes
_UNCHOSEN = torch.get_num_threads()


def threads_for(device: torch.device, parameters: int) -> int | None:
    """1 for a small model on a CPU; None, which keeps torch's number, for others and where the user has chosen.

    To choose is to set OMP_NUM_THREADS, or to call `torch.set_num_threads` once pardec is imported.
    """
    chosen = "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() != _UNCHOSEN
    return 1 if device.type == "cpu" and parameters < SMALL and not chosen else None


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """A context with this number of threads; None changes nothing."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
