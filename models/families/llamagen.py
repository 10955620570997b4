"""LlamaGen: Llama's blocks over the cells of a picture, behind a class or a caption.

Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation, https://arxiv.org/abs/2406.06525

Published files hold tensors alone. What they do not say (heads, cells) is stated by a config.json, by a file of the
same name that ends in `.args.json`, or follows from the width and the file's name as the published ones are called.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..loading.sources import read_json
from .base import Config, FamilySpec, register

if TYPE_CHECKING:
    from torch import Tensor

    from ..loading.weights import Published

CONDITION = "cls_embedding."  # what turns a class or a caption into input states
HEADS = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2560: 40, 2048: 32, 3200: 32, 4096: 32}  # of the published widths
_SIDES = {"256": 16, "384": 24, "512": 32}  # pixels in a file's name, cells along a side
_LAYER = "layers.{i}."
_NAMES: dict[str, str | tuple[str, ...]] = {
    "embed.weight": "tok_embeddings.weight",
    "norm.weight": "norm.weight",
    "head.weight": "output.weight",
    "layers.{i}.attn_norm": _LAYER + "attention_norm.weight",
    "layers.{i}.mlp_norm": _LAYER + "ffn_norm.weight",
    "layers.{i}.qkv_weight": _LAYER + "attention.wqkv.weight",
    "layers.{i}.out_weight": _LAYER + "attention.wo.weight",
    "layers.{i}.gate_up_weight": (_LAYER + "feed_forward.w1.weight", _LAYER + "feed_forward.w3.weight"),
    "layers.{i}.down_weight": _LAYER + "feed_forward.w2.weight",
}


def read_config(file: Path, published: Mapping[str, Published]) -> Config:
    """What a config.json would say of the tensors in `file`. Raises ModelError for those of another model."""
    table, output = published.get("tok_embeddings.weight"), published.get("output.weight")
    gate = published.get("layers.0.feed_forward.w1.weight")
    if table is None or output is None or gate is None:
        raise ModelError(
            f"{file} does not hold a LlamaGen transformer", "other checkpoints are folders with a config.json"
        )
    layers = 1 + max(int(hit[1]) for name in published if (hit := re.match(r"layers\.(\d+)\.", name)))
    width = table.shape[1]
    found: Config = {
        "dim": width,
        "n_layer": layers,
        "vocab_size": table.shape[0],
        "ffn_hidden": gate.shape[0],
        "gpt_type": "c2i" if CONDITION + "embedding_table.weight" in published else "t2i",
    }
    if width in HEADS:
        found["n_head"] = HEADS[width]
    stated = file.with_name(file.name.removesuffix(file.suffix) + ".args.json")
    if stated.is_file():
        found |= _arguments(stated)
    rows, taken = published.get("freqs_cis"), published.get(CONDITION + "uncond_embedding")
    found.setdefault("cls_token_num", taken.shape[0] if taken is not None else 1)
    if "block_size" not in found and rows is not None:
        found["block_size"] = rows.shape[0] - found["cls_token_num"]
    sizes = [side for pixels, side in _SIDES.items() if pixels in re.split(r"\D+", file.stem)]
    if "block_size" not in found and len(sizes) == 1:
        found["block_size"] = sizes[0] ** 2
    for key, what in (("n_head", "how many heads"), ("block_size", "how many cells a picture")):
        if key not in found:
            raise ModelError(
                f"{file} does not say {what} it has", f'write {{"{key}": ...}} into {stated.name} beside it'
            )
    return {"model_type": "llamagen", **found}


def _arguments(file: Path) -> Config:
    held = read_json(file)
    kind = {"gpt_type": held.pop("model_type")} if "model_type" in held else {}
    return {**held, **kind}


def side(config: Config) -> int:
    """Cells along a side of a picture. Raises ModelError for a number of cells that makes no square."""
    cells = int(config["block_size"])
    root = math.isqrt(cells)
    if root * root != cells or not cells:
        raise ModelError(f"block_size is {cells}, and a picture's cells make a square", "16x16 cells are 256")
    return root


def _decoder(config: Config) -> DecoderConfig:
    try:
        width, heads = int(config["dim"]), int(config["n_head"])
        layers, vocab, grid = int(config["n_layer"]), int(config["vocab_size"]), side(config)
    except KeyError as error:
        raise ModelError(f"the configuration does not describe LlamaGen: {error.args[0]} is missing") from None
    if heads < 1 or width % heads or (width // heads) % 4:
        raise ModelError(f"{heads} heads over a width of {width}: a head's size has to be a multiple of 4")
    from ..rope import default_frequencies

    size = width // heads
    return DecoderConfig(
        vocab=vocab,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=int(config.get("n_kv_head") or heads),
        head_dim=size,
        mlp_width=int(config.get("ffn_hidden") or _hidden(config, width)),
        norm_eps=float(config.get("norm_eps", 1e-5)),
        frequencies=tuple(default_frequencies(float(config.get("rope_base", 10000)), size // 2).tolist()),
        grid=grid,
    )


def _hidden(config: Config, width: int) -> int:
    hidden = int(2 * 4 * width / 3)
    if config.get("ffn_dim_multiplier"):
        hidden = int(config["ffn_dim_multiplier"] * hidden)
    multiple = int(config.get("multiple_of", 256))
    return multiple * -(-hidden // multiple)


def halved(name: str, tensor: Tensor, config: DecoderConfig) -> Tensor:
    """Rows of published queries and keys, whose pairs stand side by side, in the order in which halves are rotated."""
    return _ordered(name, tensor, config, "h (d two) e -> h (two d) e")


def paired(name: str, tensor: Tensor, config: DecoderConfig) -> Tensor:
    """The inverse of `halved`, for writing a checkpoint."""
    return _ordered(name, tensor, config, "h (two d) e -> h (d two) e")


def _ordered(name: str, tensor: Tensor, config: DecoderConfig, order: str) -> Tensor:
    import torch
    from einops import rearrange

    if not name.endswith("qkv_weight"):
        return tensor
    size, turned = config.head_dim, (config.heads + config.kv_heads) * config.head_dim
    heads = rearrange(tensor[:turned], "(h d) e -> h d e", d=size)
    return torch.cat((rearrange(rearrange(heads, order, two=2), "h d e -> (h d) e"), tensor[turned:]))


LLAMAGEN = register(
    FamilySpec(
        name="llamagen",
        summary="LlamaGen: pictures of a class or a caption",
        matches=lambda config: config.get("model_type") == "llamagen",
        decoder=_decoder,
        names=_NAMES,
        attention="causal",
        shift=1,
        harmless=(r"cls_embedding\..*", "freqs_cis"),
        convert=halved,
        imaging="pardec.models.images.llamagen:build",
        positions=lambda config: int(config.get("cls_token_num", 1)) + int(config["block_size"]),
    )
)
