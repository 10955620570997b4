"""Spreading a decoder's layers over devices with accelerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_balanced_memory

from ..decoder import Decoder
from ..errors import ModelError
from ..files.arguments import check_device_map

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
        dispatch_model(decoder, chosen, main_device=main)
    decoder.placement = tuple(main if device.type == "cpu" else device for device in devices)
    embed = device_of("embed.weight")
    decoder.embed_device = main if embed.type == "cpu" else embed
    return decoder


def _inferred(decoder: Decoder, policy: str, dtype: torch.dtype) -> dict[str, Any]:
    check_device_map(policy)
    whole = sorted({type(layer).__name__ for layer in decoder.layers})
    memory = None
    if policy != "sequential" and torch.cuda.is_available():
        memory = get_balanced_memory(
            decoder, dtype=dtype, low_zero=policy == "balanced_low_0", no_split_module_classes=whole
        )
    return dict(infer_auto_device_map(decoder, max_memory=memory, dtype=dtype, no_split_module_classes=whole))
