"""The words that `load` takes for device, dtype and quantize, checked before torch is imported."""

from __future__ import annotations

import re
from importlib import metadata

from .errors import ArgumentError, did_you_mean

DTYPES = ("float32", "bfloat16", "float16", "fp32", "bf16", "fp16")
QUANTIZED = ("int8", "int4", "fp8")
# The kinds of device that torch itself can name and compute on; packages add others by entry points `torch.backends`.
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "maia", "ipu", "vulkan", "privateuseone")


def check(device: object = "auto", dtype: object = "auto", quantize: str | None = None) -> None:
    """Refuses words that mean nothing anywhere (ArgumentError); what this machine has is asked at loading."""
    if isinstance(device, str) and device != "auto":
        found = re.fullmatch(r"([a-z]+)(:\d+)?", device)
        foreign = metadata.entry_points(group="torch.backends")
        if found is None or (found[1] not in DEVICES and not foreign):
            raise unknown_device(device)
    if isinstance(dtype, str) and dtype not in ("auto", *DTYPES):
        raise ArgumentError(
            f"unknown dtype {dtype!r}{did_you_mean(dtype, DTYPES)}", f"use auto, {', '.join(DTYPES[:3])}"
        )
    if quantize is not None and quantize not in QUANTIZED:
        near = did_you_mean(str(quantize), QUANTIZED)
        raise ArgumentError(f"unknown quantize {quantize!r}{near}", f"use {', '.join(QUANTIZED)}")


def unknown_device(device: object) -> ArgumentError:
    """The error of a device that there is not."""
    near = did_you_mean(str(device), ("auto", "cpu", "cuda", "mps"))
    return ArgumentError(f"unknown device {str(device)!r}{near}", "use auto, cpu, cuda, cuda:N or mps")
