"""Random folders of Medusa's and Hydra's heads in the published layouts, written from their description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def values(*shape: int, seed: int, scale: float = 0.4) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def medusa(
    width: int = 16, vocab: int = 40, heads: int = 3, blocks: int = 1, *, bias: bool = True, seed: int = 0
) -> Tensors:
    """v0.1 tensors: `{head}.{block}.linear`, and the last linear after the blocks."""
    tensors: Tensors = {}
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = values(width, width, seed=seed + 100 * head + block)
            if bias:
                tensors[f"{head}.{block}.linear.bias"] = values(width, seed=seed + 100 * head + block + 50)
        tensors[f"{head}.{blocks}.weight"] = values(vocab, width, seed=seed + 100 * head + 99)
    return tensors


def untrained(head: Tensor, heads: int = 3) -> Tensors:
    """v0.1 heads before any training: no block adds anything, and the last linear is the target's."""
    width, tensors = head.shape[1], dict[str, Tensor]()
    for index in range(heads):
        tensors[f"{index}.0.linear.weight"] = torch.zeros(width, width)
        tensors[f"{index}.0.linear.bias"] = torch.zeros(width)
        tensors[f"{index}.1.weight"] = head.clone()
    return tensors


def renamed(tensors: Tensors, layout: str) -> Tensors:
    """v0.1 tensors under the names of "v1.0", "vllm", or "vllm-prefix"."""
    if layout == "v0.1":
        return dict(tensors)
    if layout == "v1.0":
        return {f"medusa_head.{name}": tensor for name, tensor in tensors.items()}
    stem, result = "medusa_heads." if layout == "vllm-prefix" else "", dict[str, Tensor]()
    for name, tensor in tensors.items():
        head, block, *rest = name.split(".")
        new = f"blocks.{head}.layers.{block}.{rest[-1]}" if len(rest) > 1 else f"lm_heads.{head}.weight"
        result[stem + new] = tensor
    return result


def hydra(
    width: int = 16,
    vocab: int = 40,
    heads: int = 3,
    blocks: int = 2,
    *,
    grounded: bool = True,
    prefix: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Tensors:
    """Hydra's tensors; `prefix` has the sizes of the layer before the heads: heads, kv_heads, head_dim, inner."""
    tensors: Tensors = {}
    number = iter(range(seed + 1000, seed + 2000))

    def linear(stem: str, rows: int, columns: int) -> None:
        tensors[f"{stem}.weight"] = values(rows, columns, seed=next(number))
        tensors[f"{stem}.bias"] = values(rows, seed=next(number))

    for head in range(heads):
        for block in range(blocks):
            stem = f"hydra_mlp.{head}.{2 * block + 1 if prefix else block}"  # dropout takes every second index
            inputs = (head + 2) * width if grounded and not block else width
            linear(f"{stem}.linear", width, inputs)
            if grounded and not block:
                linear(f"{stem}.res_connection", width, inputs)
        linear(f"hydra_lm_head.{head}{'.1' if prefix else ''}", vocab, width)
    if prefix:
        stem, dim = "prefix_embeding_layer.layers.0.", prefix["head_dim"]
        for part, count in (("q", prefix["heads"]), ("k", prefix["kv_heads"]), ("v", prefix["kv_heads"])):
            tensors[f"{stem}self_attn.{part}_proj.weight"] = values(count * dim, width, seed=next(number))
        tensors[f"{stem}self_attn.o_proj.weight"] = values(width, prefix["heads"] * dim, seed=next(number))
        for part in ("gate", "up"):
            tensors[f"{stem}mlp.{part}_proj.weight"] = values(prefix["inner"], width, seed=next(number))
        tensors[f"{stem}mlp.down_proj.weight"] = values(width, prefix["inner"], seed=next(number))
        for norm in (f"{stem}input_layernorm", f"{stem}post_attention_layernorm", "prefix_embeding_layer.norm"):
            tensors[f"{norm}.weight"] = 1 + values(width, seed=next(number))
    return tensors


CONFIGS: dict[str, dict[str, Any]] = {
    "v0.1": {"medusa_num_heads": 2, "medusa_num_layers": 1},  # as published: the file has more
    "v1.0": {"medusa_num_heads": 3, "model_type": "llama"},
    "vllm": {"model_type": "medusa", "num_heads": 3},
    "hydra": {"hydra_num_heads": 3, "hydra_head_arch": "mlp", "grounded_heads": True, "hidden_state_offset": 0},
}


def write(folder: Path, tensors: Tensors, config: Mapping[str, Any], file: str) -> Path:
    """Writes the folder; `file` names the weights, and one that ends in .pt or .bin is a pickle."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    if file.endswith(".safetensors"):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder
