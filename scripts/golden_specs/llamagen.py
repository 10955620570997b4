"""LlamaGen's image tokenizer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from golden_specs import TOLERANCE, Case, Reader, Replay, relative
from pardec.models.vision.vq import VQ
from pardec.models.vision.vq_files import load_vq


@lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> VQ:
    return load_vq(folder / "checkpoint" / "vq_tiny.pt")


def _encode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    """Codes exactly, and the rows of the codebook that they stand for."""
    model = _tokenizer(folder)
    codes = model.encode(tensors[case["image_tensor"]])
    if codes.flatten().tolist() != case["codes"]:
        return f"codes {codes.flatten().tolist()}, expected {case['codes']}"
    error = relative(model.vectors(codes), tensors[case["quant_tensor"]])
    return f"quantized features differ by {error:.1e}" if error > TOLERANCE else None


def _decode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    pictures, _, height, width = case["params"]["shape"]
    codes = torch.tensor(case["codes"]).reshape(pictures, height, width)
    error = relative(_tokenizer(folder).decode(codes), tensors[case["pixels_tensor"]])
    return f"pixels differ by {error:.1e}" if error > TOLERANCE else None


CALLS: dict[str, Reader] = {}
REPLAYS: dict[str, Replay] = {"vq_encode": _encode, "vq_decode": _decode}
