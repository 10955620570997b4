"""Small random Infinity models in the published layout: names, shapes and containers of the authors' files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

BITS, FEATURES, LONGEST, WIDTH, HEADS, HIDDEN, CHANNELS = 6, 128, 9, 32, 2, 64, 32
TOKENS = 521  # of the maps of the smallest size, 0.06M


def transformer(*, chunks: int = 2, each: int = 2, bits: int = BITS, width: int = WIDTH) -> dict[str, Tensor]:
    """The tensors of a transformer, its blocks in chunks; without `chunks` one after the other."""
    shapes: dict[str, tuple[int, ...]] = {
        "cfg_uncond": (LONGEST, FEATURES),
        "pos_start": (1, 1, width),
        "text_norm.weight": (FEATURES,),
        "text_proj_for_sos.ca.mat_q": (1, HEADS, width // HEADS),
        **_attention("text_proj_for_sos.ca.", FEATURES, width),
        **_linear("text_proj_for_ca.0", FEATURES, width),
        **_linear("text_proj_for_ca.2", width, width),
        "lvl_embed.weight": (15, width),
        **_linear("word_embed", bits, width),
        **_linear("shared_ada_lin.1", width, 6 * width),
        **_linear("head_nm.ada_lin.1", width, 2 * width),
        **_linear("head", width, 2 * bits),
    }
    for block in range(max(chunks, 1) * each):
        at = f"block_chunks.{block // each}.module.{block % each}." if chunks else f"blocks.{block}."
        shapes |= {
            at + "ada_gss": (1, 1, 6, width),
            at + "sa.scale_mul_1H11": (1, HEADS, 1, 1),
            at + "sa.q_bias": (width,),
            at + "sa.v_bias": (width,),
            at + "sa.zero_k_bias": (width,),
            at + "sa.mat_qkv.weight": (3 * width, width),
            **_linear(at + "sa.proj", width, width),
            **_linear(at + "ca.mat_q", width, width),
            **_attention(at + "ca.", width, width),
            **_linear(at + "ffn.fc1", width, HIDDEN),
            **_linear(at + "ffn.fc2", HIDDEN, width),
            at + "ca_norm.weight": (width,),
            at + "ca_norm.bias": (width,),
        }
    tensors = drawn(shapes, seed=0)
    for name in tensors:
        if "scale_mul" in name:
            tensors[name] += 1.4
            tensors[name][0, 0] = 5.0  # above the published bound, log 100
    return tensors


def decoder(*, bits: int = BITS) -> dict[str, Tensor]:
    """The tensors of an image tokenizer's decoder with two levels, and some of its encoder and quantizer."""
    wide = 2 * CHANNELS
    shapes = {
        **_conv("decoder.conv_in", bits, wide),
        **_resnet("decoder.mid.block_1", wide, wide),
        **_resnet("decoder.mid.block_2", wide, wide),
        **_resnet("decoder.up.1.block.0", wide, wide),
        **_resnet("decoder.up.1.block.1", wide, wide),
        **_conv("decoder.up.1.upsample.conv", wide, wide),
        **_resnet("decoder.up.0.block.0", wide, CHANNELS),
        **_resnet("decoder.up.0.block.1", CHANNELS, CHANNELS),
        "decoder.norm_out.norm.weight": (CHANNELS,),
        "decoder.norm_out.norm.bias": (CHANNELS,),
        **_conv("decoder.conv_out", CHANNELS, 3),
        **_conv("encoder.conv_in", 3, CHANNELS),
    }
    return {**drawn(shapes, seed=1), "quantizer.lfq.mask": 2 ** torch.arange(bits - 1, -1, -1)}


def drawn(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Normal numbers, the same with every version of the libraries, so scaled that codes differ from place to place."""
    source, tensors = np.random.RandomState(seed), {}
    for name, shape in shapes.items():
        matrix = name.endswith("weight") and len(shape) > 1 and name != "lvl_embed.weight"
        scale = np.prod(shape[1:]) ** -0.5 if matrix else 0.1
        if name in ("word_embed.weight", "cfg_uncond") or name.endswith(("ada_gss", "mat_q")):
            scale = 1.0
        value = source.standard_normal(shape) * scale + (len(shape) == 1 and name.endswith("weight"))
        tensors[name] = torch.from_numpy(value).float() * ("zero_k_bias" not in name)
    return tensors


def folder(path: Path, *, pn: str | None = "0.06M", tensors: dict[str, Tensor] | None = None) -> Path:
    """A folder of both files, and an args.json that states the size."""
    path.mkdir(parents=True, exist_ok=True)
    torch.save(transformer() if tensors is None else tensors, path / "infinity_2b_reg.pth")
    torch.save({"vae": decoder()}, path / "infinity_vae_d32reg.pth")
    if pn is not None:
        (path / "args.json").write_text(json.dumps({"pn": pn}))
    return path


def captions() -> list[Tensor]:
    """Features of two captions, of 5 and 3 tokens, and of a negative prompt of 4."""
    source = np.random.RandomState(2)
    return [torch.from_numpy(source.standard_normal((count, FEATURES))).float() for count in (5, 3, 4)]


class Uniforms:
    """Recorded uniforms in place of a seed, one for each bit of two images."""

    def __init__(self) -> None:
        self.each = torch.from_numpy(np.random.RandomState(3).random_sample((2, TOKENS * BITS)))

    def uniform(self, rows: np.ndarray, draws: np.ndarray, index: Tensor, purpose: str) -> Tensor:
        return self.each[torch.from_numpy(rows)[:, None], index]


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _attention(name: str, inputs: int, width: int) -> dict[str, tuple[int, ...]]:
    own = {f"{name}v_bias": (width,), f"{name}zero_k_bias": (width,), f"{name}mat_kv.weight": (2 * width, inputs)}
    return {**own, **_linear(f"{name}proj", width, width)}


def _conv(name: str, inputs: int, outputs: int, size: int = 3) -> dict[str, tuple[int, ...]]:
    return {f"{name}.conv.weight": (outputs, inputs, size, size), f"{name}.conv.bias": (outputs,)}


def _resnet(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    norms = {f"{name}.norm1.norm": inputs, f"{name}.norm2.norm": outputs}
    shapes = {f"{norm}.{part}": (size,) for norm, size in norms.items() for part in ("weight", "bias")}
    shapes |= _conv(f"{name}.conv1", inputs, outputs) | _conv(f"{name}.conv2", outputs, outputs)
    return shapes | (_conv(f"{name}.nin_shortcut", inputs, outputs, 1) if inputs != outputs else {})
