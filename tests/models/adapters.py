"""LoRA adapters as files, and a plain version of merging them into a state dict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "base_model_name_or_path": "the/base", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"],
    "bias": "none", "use_rslora": False, "use_dora": False, "fan_in_fan_out": False, "modules_to_save": None,
    "rank_pattern": {}, "alpha_pattern": {}, "init_lora_weights": True,
}  # fmt: skip


def pairs(tensors: Mapping[str, Tensor], modules: Iterable[str], rank: int = 3, seed: int = 9) -> dict[str, Tensor]:
    """Random A and B matrices for the linear layers of these names, under PEFT's names."""
    generator = torch.Generator().manual_seed(seed)
    halves = {}
    for module in modules:
        rows, columns = tensors[f"{module}.weight"].shape
        stem = f"base_model.model.{module}."
        halves[stem + "lora_A.weight"] = torch.randn(rank, columns, generator=generator) * 0.3
        halves[stem + "lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.3
    return halves


def naive(
    tensors: Mapping[str, Tensor], halves: Mapping[str, Tensor], modules: Iterable[str], scale: float = 2.0
) -> dict[str, Tensor]:
    """The state dict with every pair of matrices merged, one outer product at a time."""
    merged = dict(tensors)
    for module in modules:
        a, b = (halves[f"base_model.model.{module}.lora_{half}.weight"] for half in "AB")
        weight = tensors[f"{module}.weight"].double()
        for column, row in zip(b.t(), a, strict=True):
            weight = weight + scale * torch.outer(column.double(), row.double())
        merged[f"{module}.weight"] = weight.float()
    return merged


def write_adapter(folder: Path, tensors: Mapping[str, Tensor], **changes: Any) -> Path:
    """Writes a folder as PEFT saves it; its config targets the modules with matrices, unless `changes` override it."""
    folder.mkdir(parents=True, exist_ok=True)
    stems = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in tensors if ".lora_" in name}
    targets = {"target_modules": sorted(stems)} if stems else {}
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | targets | changes), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return folder
