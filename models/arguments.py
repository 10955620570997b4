"""The words that `load` takes for device, dtype, quantize and device_map, checked before torch is imported."""

from __future__ import annotations

import os
import re
from importlib import metadata
from numbers import Integral

from .errors import ArgumentError, did_you_mean

DTYPES = ("float32", "bfloat16", "float16", "fp32", "bf16", "fp16")
QUANTIZED = ("int8", "int4", "fp8")
STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells its processes
SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # ways to spread layers, in accelerate's words
# The kinds of device that torch itself can name and compute on; packages add others by entry points `torch.backends`.
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "maia", "ipu", "vulkan", "privateuseone")


def check(
    device: object = "auto",
    dtype: object = "auto",
    quantize: str | None = None,
    device_map: object = None,
    *,
    tp: bool = False,
    mask_id: object = None,
) -> None:
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
    if quantize is not None and device_map is not None:
        raise ArgumentError(
            f"quantize={quantize} and device_map={device_map} are both given, and weights of fewer bits cannot be "
            "moved",
            'name one device in place of the map: device="cuda"',
        )
    if isinstance(device_map, str):
        check_spread(device_map)
    check_whole("mask_id", mask_id)
    if tp:
        alone("tp", quantize=quantize, device_map=device_map)
        check_started()


def check_spread(policy: str) -> None:
    """Refuses a way to spread layers that there is not (ArgumentError)."""
    if policy not in SPREADS:
        near = did_you_mean(policy, SPREADS)
        raise ArgumentError(f"unknown device_map {policy!r}{near}", 'use "auto" or a dictionary of parts and devices')


def check_whole(name: str, given: object) -> None:
    """Refuses an id or a length that is no whole number (ArgumentError)."""
    if given is not None and (not isinstance(given, Integral) or isinstance(given, bool)):
        raise ArgumentError(f"{name} is a whole number, got {given!r}", f"leave {name} out for the checkpoint's own")


def check_started() -> None:
    """Refuses a share of a model for a process that torchrun did not start (ArgumentError)."""
    if any(name not in os.environ for name in STARTED):
        raise ArgumentError(
            "tensor parallel works under torchrun, which did not start this process",
            "torchrun --nproc-per-node 2 -m pardec generate MODEL -p TEXT --tp",
        )


def unknown_device(device: object) -> ArgumentError:
    """The error of a device that there is not."""
    near = did_you_mean(str(device), ("auto", "cpu", "cuda", "mps"))
    return ArgumentError(f"unknown device {str(device)!r}{near}", "use auto, cpu, cuda, cuda:N or mps")


def alone(wanted: str, **others: object) -> None:
    """Refuses what does not go with the argument `wanted` (ArgumentError)."""
    for name, given in others.items():
        if given is not None:
            both = f"{wanted} and {name}={given} are both given"
            raise ArgumentError(f"{both}, and they do not go together", f"leave {name} out")
