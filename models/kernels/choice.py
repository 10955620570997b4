"""Which version of a kernel runs: the definition ("reference"), Triton's, or one in C."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from ..errors import ModelError
from .cpu import library
from .cpu.layers import usable as runs_in_c
from .variable import VARIABLE

__all__ = ["VARIABLE", "Backend", "backend", "interpreted", "prepare", "runs_in_c"]

Backend = Literal["reference", "c", "triton"]


def backend(device: torch.device, dtype: torch.dtype | None = None, *, suited: bool = True) -> Backend:
    """Triton on CUDA where it is installed, the definition elsewhere; the variable PARDEC_KERNELS forces either.

    With a `dtype`, kernels in C are chosen for float32 and bfloat16 on the CPUs that they are made for, unless
    gradients are on or a dispatch mode follows PyTorch's operations. `suited` False says that Triton's version would
    not be the faster one here, so that only force chooses it.
    Raises ModelError when the forced version cannot run on `device`. On a CPU, Triton runs under its interpreter only
    (TRITON_INTERPRET=1, set before Python starts).
    """
    name = os.environ.get(VARIABLE) or "auto"
    if name == "reference":
        return "reference"
    if name == "auto":
        if suited and device.type == "cuda" and _has_triton():
            return "triton"
        return "c" if dtype is not None and runs_in_c(device, dtype) else "reference"
    if name != "triton":
        raise ModelError(f"{VARIABLE}={name} is unknown", "use reference, triton or auto")
    if not _has_triton():
        raise ModelError(f"{VARIABLE}=triton, but triton is not installed", f"install triton, or unset {VARIABLE}")
    if device.type != "cuda" and not interpreted():
        raise ModelError(
            f"{VARIABLE}=triton cannot run on {device.type}",
            f"unset {VARIABLE}, or set TRITON_INTERPRET=1 to interpret the kernels",
        )
    return "triton"


def prepare(device: torch.device, dtype: torch.dtype, *folders: Path) -> None:
    """Compiles the C files in `folders` and here, so that the first decoding step does not wait for it."""
    if device.type == "cpu" and dtype in library.TYPES:
        library.prepare(Path(library.__file__).parent, *folders)


def interpreted() -> bool:
    """Whether Triton runs under its interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def architecture() -> int:
    """The compute capability that Triton compiles for, such as 90 for an H100 and under the interpreter."""
    if interpreted():
        return 90
    from triton.runtime import jit

    arch = jit.driver.active.get_current_target().arch
    return arch if isinstance(arch, int) else 0  # AMD's are names


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
