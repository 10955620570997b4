"""The peak memory of a run, and the error for a device that runs out of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from pardec.models.errors import PardecError


class OutOfMemory(PardecError, MemoryError):
    """The device has no room for the request."""


@contextmanager
def memory_errors(what: str, hint: str) -> Iterator[None]:
    """Turns an out-of-memory error of the code inside into OutOfMemory, with a hint."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error


class Peak:
    """The peak memory between `reset` and `read`, in bytes.

    On a GPU, the memory allocated by torch; on a Linux CPU, that of the whole process; None elsewhere.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "cpu":
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current usage

    def read(self) -> int | None:
        """The peak since `reset`."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if self.device.type == "cpu":
            with suppress(OSError):
                match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
                return int(match[1]) * 1024 if match else None
        return None
