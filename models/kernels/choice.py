"""Which version of a kernel runs: the definition ("reference"), Triton's, or one in C."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch

from ..errors import ModelError

Backend = Literal["reference", "c", "triton"]
VARIABLE = "PARDEC_KERNELS"


def backend(device: torch.device, *, suited: bool = True) -> Backend:
    """Triton on CUDA where it is installed, the definition elsewhere; the variable PARDEC_KERNELS forces either.

    `suited` False says that Triton's version would not be the faster one here, so that only force chooses it.
    Raises ModelError when the forced version cannot run on `device`. On a CPU, Triton runs under its interpreter only
    (TRITON_INTERPRET=1, set before Python starts).
    """
    forced = os.environ.get(VARIABLE, "auto") or "auto"
    if forced == "reference":
        return "reference"
    if forced == "auto":
        return "triton" if suited and device.type == "cuda" and _has_triton() else "reference"
    if forced != "triton":
        raise ModelError(f"{VARIABLE}={forced} is not a choice of kernels", "use reference, triton or auto")
    if not _has_triton():
        raise ModelError(f"{VARIABLE}=triton, but triton is not installed", f"install triton, or unset {VARIABLE}")
    if device.type != "cuda" and not interpreted():
        raise ModelError(
            f"{VARIABLE}=triton cannot run on {device.type}",
            f"unset {VARIABLE}, or set TRITON_INTERPRET=1 to interpret the kernels",
        )
    return "triton"


def interpreted() -> bool:
    """Whether Triton runs under its interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
