"""The peak memory of a batch."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch


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
