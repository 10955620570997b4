"""Random GGUF files of several types, as llama.cpp's quantizer mixes them: Q4_K_M and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.models.loading.gguf_files import CONFIG, write_gguf

WIDTH, INNER = 256, 512
SHAPES = {
    "token_embd": (CONFIG["vocab_size"], WIDTH), "output": (CONFIG["vocab_size"], WIDTH),
    "attn_q": (4 * 64, WIDTH), "attn_k": (2 * 64, WIDTH), "attn_v": (2 * 64, WIDTH), "attn_output": (WIDTH, 4 * 64),
    "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER),
}  # fmt: skip
SCALES = {
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_XS": (0,), "Q8_0": (0,),
}  # fmt: skip
STEP = {"Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 1e-4, "Q2_K": 2e-3, "Q3_K": 1e-3, "IQ4_XS": 1e-4, "Q8_0": 1e-3}

Q4_K_M = {"": "Q4_K", "blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "output": "Q6_K"}


def write_mixed(file: Path, types: dict[str, str], *, tied: bool = False) -> Path:
    """A Llama of 2 layers whose matrices have these types, by name without `.weight`; "" is that of all others."""
    draw = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for name in ["token_embd", "output", *(f"blk.{i}.{part}" for i in range(2) for part in SHAPES if "_" in part)]:
        part = name.rpartition(".")[2]
        if (part == "token_embd") != (name == "token_embd") or (tied and name == "output"):
            continue
        kind = types.get(name, types[""])
        tensors[f"{name}.weight"] = random_tensor(draw, kind, SHAPES[part]), gguf.GGMLQuantizationType[kind]
    changes = {"hidden_size": WIDTH, "intermediate_size": INNER, "head_dim": 64}
    return write_gguf(file, "F32", tied=tied, changes=changes, tensors=tensors)


def random_tensor(draw: np.random.Generator, kind: str, shape: tuple[int, int]) -> NDArray[Any]:
    if kind in ("F16", "F32"):
        return (draw.standard_normal(shape) * 0.1).astype(kind.replace("F", "float"))
    block, size = gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = draw.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = draw.standard_normal((*raw.shape[:2], 1)) * STEP[kind]
        raw[..., at : at + 2] = scale.astype(np.float16).view(np.uint8)
    return raw.reshape(shape[0], -1)
