"""The choice of a device and dtype for a model, with the reason in words; layers spread over devices by accelerate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from ..decoder import Decoder
from ..errors import ArgumentError, ModelError
from ..files import arguments
from ..files.arguments import check_device_map
from ..files.weights import Published

T = TypeVar("T")

DTYPES = dict(zip(arguments.DTYPES, (torch.float32, torch.bfloat16, torch.float16) * 2, strict=True))
_ON_CPU = 'use device="cpu" or device="auto"'


def short(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def choose_device(requested: str | torch.device) -> tuple[torch.device, str]:
    """The device, and why. "auto" prefers cuda, then mps, then cpu."""
    if str(requested) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device()), f"{torch.cuda.get_device_name()} found"
        if torch.backends.mps.is_available():
            return torch.device("mps"), "Apple GPU found"
        return torch.device("cpu"), "no GPU found"
    try:
        device = torch.device(requested)
    except (RuntimeError, TypeError) as error:
        raise arguments.unknown_device(requested) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"device {device} was requested, but torch finds no CUDA GPU", _ON_CPU)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(
            f"device {device} was requested, but there are {torch.cuda.device_count()} CUDA GPUs (from cuda:0)",
            'use device="cuda" or device="auto"',
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ArgumentError("device mps was requested, but torch finds no Apple GPU", _ON_CPU)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # raised by builds without that device type
        raise ArgumentError(f"device {device} was requested, but torch cannot use it here", _ON_CPU) from error
    return device, "as asked"


def choose_dtype(requested: str | torch.dtype, device: torch.device, stored: torch.dtype) -> tuple[torch.dtype, str]:
    """The dtype, and why. "auto" keeps the checkpoint's on a GPU that can run it, and takes float32 on a CPU."""
    if isinstance(requested, torch.dtype):
        if requested not in DTYPES.values():
            raise ArgumentError(
                f"dtype {short(requested)} cannot be used for computation", f"use auto, {', '.join(list(DTYPES)[:3])}"
            )
        return requested, "as asked"
    if requested != "auto":
        arguments.check(dtype=str(requested))
        return DTYPES[str(requested)], "as asked"
    if device.type == "cpu":
        return torch.float32, "default on a CPU" + ("" if stored == torch.float32 else f"; stored as {short(stored)}")
    if stored == torch.bfloat16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return torch.float16, "the checkpoint is bfloat16, which this GPU does not support"
    if stored == torch.float64:
        return torch.float32, "the checkpoint holds float64"
    return stored, "the checkpoint's"


def stored_dtype(published: Mapping[str, Published]) -> torch.dtype:
    """The floating-point type of most of the published values; float32 if there are none."""
    count: Counter[torch.dtype] = Counter()
    for entry in published.values():
        if entry.dtype is not None:
            count[entry.dtype] += torch.Size(entry.shape).numel()
    return count.most_common(1)[0][0] if count else torch.float32


def guarded(name: str, make: Callable[[], T], published: Mapping[str, Published], dtype: torch.dtype) -> T:
    """Runs `make`; running out of memory becomes a ModelError with the size."""
    try:
        return make()
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        size = sum(torch.Size(entry.shape).numel() for entry in published.values()) * dtype.itemsize
        raise ModelError(
            f"out of memory while loading {name}: its weights take {size / 2**30:.1f} GiB in {short(dtype)}",
            'try dtype="bfloat16", device_map="auto" (spreads layers over devices) or device="cpu"',
        ) from error


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out: Python's, a GPU's or the CPU allocator's."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


DeviceOf = Callable[[str], torch.device]


def spread(
    decoder: Decoder, device_map: str | dict[str, Any], dtype: torch.dtype, fill: Callable[[DeviceOf], None]
) -> Decoder:
    """Places the layers by `device_map`, reads the weights with `fill(device_of)`, and connects the parts by hooks.

    Layers placed on the CPU beside a GPU are brought to the GPU when they run. Raises ModelError for a map that names
    the disk, an unknown part or an unknown policy.
    """
    chosen = device_map if isinstance(device_map, dict) else _inferred(decoder, device_map, dtype)
    if "disk" in chosen.values():
        raise ModelError(
            "the model does not fit the memory of all devices together, and layers are not kept on disk",
            'load it in a smaller dtype, such as dtype="bfloat16"',
        )
    devices_of = {
        part: torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        for part, device in chosen.items()
    }

    def device_of(name: str) -> torch.device:
        parts = name.split(".")
        for depth in range(len(parts), -1, -1):
            if (device := devices_of.get(".".join(parts[:depth]))) is not None:
                return device
        raise ModelError(
            f"device_map has no device for {name}", f"it has entries for {', '.join(map(repr, devices_of))}"
        )

    fill(device_of)
    devices = [device_of(f"layers.{index}") for index in range(decoder.config.layers)]
    main = next((device for device in devices_of.values() if device.type != "cpu"), torch.device("cpu"))
    if len(set(devices_of.values())) > 1:
        from accelerate import dispatch_model

        dispatch_model(decoder, chosen, main_device=main)
    decoder.placement = tuple(main if device.type == "cpu" else device for device in devices)
    embed = device_of("embed.weight")
    decoder.embed_device = main if embed.type == "cpu" else embed
    return decoder


def _inferred(decoder: Decoder, policy: str, dtype: torch.dtype) -> dict[str, Any]:
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    check_device_map(policy)
    whole = sorted({type(layer).__name__ for layer in decoder.layers})
    memory = None
    if policy != "sequential" and torch.cuda.is_available():
        memory = get_balanced_memory(
            decoder, dtype=dtype, low_zero=policy == "balanced_low_0", no_split_module_classes=whole
        )
    return dict(infer_auto_device_map(decoder, max_memory=memory, dtype=dtype, no_split_module_classes=whole))
