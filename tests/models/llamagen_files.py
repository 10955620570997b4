"""Random LlamaGen checkpoints as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WIDTH, VOCAB, CELLS = 16, 12, 9
ARGUMENTS: dict[str, Any] = {"n_head": 2, "block_size": CELLS}


def tensors(
    kind: str = "c2i", *, layers: int = 2, width: int = WIDTH, inner: int = 24, scale: float = 0.2
) -> dict[str, Tensor]:
    """Random tensors under the published names."""
    generator = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (VOCAB, width),
        "output.weight": (VOCAB, width),
        "norm.weight": (width,),
    }
    if kind == "c2i":
        shapes["cls_embedding.embedding_table.weight"] = (5, width)  # four classes and none
    else:
        shapes |= {
            "cls_embedding.cap_proj.fc1.weight": (width, 7),
            "cls_embedding.cap_proj.fc2.weight": (width, width),
            "cls_embedding.uncond_embedding": (6, 7),
        }
    for layer in range(layers):
        stem = f"layers.{layer}."
        shapes |= {stem + name: (width,) for name in ("attention_norm.weight", "ffn_norm.weight")}
        shapes |= {stem + "attention.wqkv.weight": (3 * width, width), stem + "attention.wo.weight": (width, width)}
        shapes |= {stem + f"feed_forward.{name}.weight": (inner, width) for name in ("w1", "w3")}
        shapes[stem + "feed_forward.w2.weight"] = (width, inner)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in shapes.items()}


def write(folder: Path, held: dict[str, Tensor], arguments: dict[str, Any] | None, name: str = "toy.pt") -> Path:
    """Writes a checkpoint as published, with its JSON file."""
    file = folder / name
    torch.save({"model": held}, file)
    if arguments is not None:
        (folder / f"{file.stem}.args.json").write_text(json.dumps(arguments))
    return file
