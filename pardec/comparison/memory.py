"""How much memory a batch takes at most."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch


class Peak:
    """The high-water mark between `reset` and `read`, in bytes.

    On a GPU what torch has allocated there; on Linux the whole process; None elsewhere.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "cpu":
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is held now

    def read(self) -> int | None:
        """The most that was held since."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if self.device.type == "cpu":
            with suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
                return int(found[1]) * 1024 if found else None
        return None
