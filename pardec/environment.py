"""The environment of a result: versions, device, threads."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from .version import __version__

PACKAGES = ("torch", "transformers", "diffusers", "accelerate", "tokenizers", "safetensors", "triton", "torchao")


@cache
def versions() -> dict[str, str]:
    """Versions of pardec, Python and the packages that results depend on; imports none of them."""
    values = {"pardec": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            values[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            values[name] = "not installed"
    return values


def machine() -> dict[str, str]:
    """Accelerators, cores and threads of this machine; imports torch."""
    import torch

    from pardec.models.kernels.choice import runs_in_c

    with torch.no_grad():
        compiled = runs_in_c(torch.device("cpu"), torch.float32)
    values = {
        "processor": processor(),
        "cpu_cores": str(os.cpu_count()),
        "torch_threads": str(torch.get_num_threads()),
        "cpu_kernels": "C" if compiled else "PyTorch's",
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            values[f"cuda:{index}"] = torch.cuda.get_device_name(index)
        values["cuda"] = str(torch.version.cuda)
    else:
        values["cuda"] = "not available"
    values["mps"] = "available" if torch.backends.mps.is_available() else "not available"
    return values


def processor() -> str:
    """The CPU's name where the system provides it, else its architecture."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        name = match[1].strip() if match else name
    return name


def checkout() -> dict[str, str]:
    """The folder that pardec runs from, and the commit if that is a checkout."""
    home = Path(__file__).resolve().parent
    values = {"path": str(home)}
    if (home.parent / ".git").exists():
        command = ["git", "-C", str(home.parent), "describe", "--always", "--dirty", "--abbrev=12"]
        try:
            git = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return values
        if git.returncode == 0:
            values["commit"] = git.stdout.strip()
    return values
