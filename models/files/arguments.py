"""Checks of `load`'s arguments device, dtype, quantize and device_map, before torch is imported."""

from __future__ import annotations

import os
import re
from importlib import metadata
from numbers import Integral

from ..errors import ArgumentError, did_you_mean

DTYPES = ("float32", "bfloat16", "float16", "fp32", "bf16", "fp16")
QUANTIZE = ("int8", "int4", "fp8")
ACTIVATIONS = ("float32", "int8")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # variables that torchrun sets
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's policies
# torch's own device types; packages add others by entry points `torch.backends`.
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "maia", "ipu", "vulkan", "privateuseone")


def check(
    device: object = "auto",
    dtype: object = "auto",
    quantize: str | None = None,
    device_map: object = None,
    *,
    tp: bool = False,
    mask_id: object = None,
    activations: object = None,
) -> None:
    """Refuses values that no machine accepts (ArgumentError); loading checks what this machine has."""
    if isinstance(device, str) and device != "auto":
        match = re.fullmatch(r"([a-z]+)(:\d+)?", device)
        foreign = metadata.entry_points(group="torch.backends")
        if match is None or (match[1] not in DEVICES and not foreign):
            raise unknown_device(device)
    if isinstance(dtype, str) and dtype not in ("auto", *DTYPES):
        raise ArgumentError(
            f"unknown dtype {dtype!r}{did_you_mean(dtype, DTYPES)}", f"use auto, {', '.join(DTYPES[:3])}"
        )
    if quantize is not None and quantize not in QUANTIZE:
        near = did_you_mean(str(quantize), QUANTIZE)
        raise ArgumentError(f"unknown quantize {quantize!r}{near}", f"use {', '.join(QUANTIZE)}")
    if activations is not None and activations not in ACTIVATIONS:
        near = did_you_mean(str(activations), ACTIVATIONS)
        raise ArgumentError(f"unknown activations {activations!r}{near}", f"use {' or '.join(ACTIVATIONS)}")
    if quantize is not None and device_map is not None:
        raise ArgumentError(
            f"quantize={quantize} and device_map={device_map} cannot be combined: quantized weights cannot be moved",
            'name one device in place of the map: device="cuda"',
        )
    if isinstance(device_map, str):
        check_device_map(device_map)
    check_whole("mask_id", mask_id)
    if tp:
        exclusive("tp", quantize=quantize, device_map=device_map)
        check_torchrun()


def check_device_map(policy: str) -> None:
    """Refuses an unknown policy of spreading layers (ArgumentError)."""
    if policy not in DEVICE_MAPS:
        near = did_you_mean(policy, DEVICE_MAPS)
        raise ArgumentError(f"unknown device_map {policy!r}{near}", 'use "auto" or a dictionary of parts and devices')


def check_whole(name: str, value: object) -> None:
    """Refuses an id or a length that is no whole number (ArgumentError)."""
    if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
        raise ArgumentError(
            f"{name} must be a whole number, got {value!r}", f"leave {name} out for the checkpoint's own"
        )


def check_torchrun() -> None:
    """Refuses tensor parallelism in a process that torchrun did not start (ArgumentError)."""
    if any(name not in os.environ for name in TORCHRUN):
        raise ArgumentError(
            "tensor parallelism needs torchrun, which did not start this process",
            "run torchrun --nproc-per-node 2 -m pardec generate MODEL -p TEXT --tp",
        )


def unknown_device(device: object) -> ArgumentError:
    """The error for an unknown device."""
    if str(device).lower().partition(":")[0] in ("gpu", "nvidia", "rocm", "hip"):
        return ArgumentError(
            f"unknown device {str(device)!r} (did you mean 'cuda'?)", "use auto, cpu, cuda, cuda:N or mps"
        )
    near = did_you_mean(str(device), ("auto", "cpu", "cuda", "mps"))
    return ArgumentError(f"unknown device {str(device)!r}{near}", "use auto, cpu, cuda, cuda:N or mps")


def exclusive(argument: str, **others: object) -> None:
    """Refuses arguments that cannot be combined with `argument` (ArgumentError)."""
    for name, value in others.items():
        if value is not None:
            raise ArgumentError(f"{argument} and {name}={value} cannot be combined", f"leave {name} out")
