"""LlamaGen: Llama's blocks over the token grid of an image, after a class or a caption.

Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation, https://arxiv.org/abs/2406.06525

Published files hold tensors alone. What they leave open (heads, grid) is stated by a config.json, by a file of the same
name that ends in `.args.json`, or follows from the width and from the naming of the published files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..files.sources import read_json
from .base import Config, ConfigKeys, FamilySpec, register
from .config_files import BOOKKEEPING

if TYPE_CHECKING:
    from torch import Tensor

    from ..files.weights import Published

CONDITION = "cls_embedding."  # the tensors that embed a class or a caption
HEADS = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2560: 40, 2048: 32, 3200: 32, 4096: 32}  # heads by published width
_SIDES = {"256": 16, "384": 24, "512": 32}  # pixels in a file's name, tokens along a side
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

KEYS = ConfigKeys(
    frozenset(
        (
            *("vocab_size", "dim", "n_layer", "n_head", "n_kv_head", "ffn_hidden", "ffn_dim_multiplier", "multiple_of"),
            *("norm_eps", "rope_base", "block_size"),
        )
    ),
    ignored=BOOKKEEPING
    | {
        *("cls_token_num", "num_classes", "class_num", "caption_dim"),  # compared with the tensors
        *("gpt_type", "image_tokenizer", "text_encoder", "clean_captions"),
        *("initializer_range", "token_dropout_p", "attn_dropout_p", "resid_dropout_p", "ffn_dropout_p"),
        *("drop_path_rate", "class_dropout_prob", "max_batch_size", "max_seq_len"),
    },
)


def read_config(file: Path, published: Mapping[str, Published]) -> Config:
    """The configuration, from the tensors in `file`. Raises ModelError if they belong to another model."""
    table, output = published.get("tok_embeddings.weight"), published.get("output.weight")
    gate = published.get("layers.0.feed_forward.w1.weight")
    if table is None or output is None or gate is None:
        raise ModelError(
            f"{file} does not hold a LlamaGen transformer", "for other models, name a folder with a config.json"
        )
    layers = 1 + max(int(hit[1]) for name in published if (hit := re.match(r"layers\.(\d+)\.", name)))
    width = table.shape[1]
    config: Config = {
        "dim": width,
        "n_layer": layers,
        "vocab_size": table.shape[0],
        "ffn_hidden": gate.shape[0],
        "gpt_type": "c2i" if CONDITION + "embedding_table.weight" in published else "t2i",
    }
    if width in HEADS:
        config["n_head"] = HEADS[width]
    sidecar = file.with_name(file.name.removesuffix(file.suffix) + ".args.json")
    if sidecar.is_file():
        config |= _arguments(sidecar)
    rows, uncond = published.get("freqs_cis"), published.get(CONDITION + "uncond_embedding")
    config.setdefault("cls_token_num", uncond.shape[0] if uncond is not None else 1)
    if "block_size" not in config and rows is not None:
        config["block_size"] = rows.shape[0] - config["cls_token_num"]
    sizes = [side for pixels, side in _SIDES.items() if pixels in re.split(r"\D+", file.stem)]
    if "block_size" not in config and len(sizes) == 1:
        config["block_size"] = sizes[0] ** 2
    for key, what in (("n_head", "how many heads"), ("block_size", "how many tokens per image")):
        if key not in config:
            raise ModelError(
                f"{file} does not say {what} it has", f'write {{"{key}": ...}} into {sidecar.name} beside it'
            )
    return {"model_type": "llamagen", **config}


def _arguments(file: Path) -> Config:
    arguments = read_json(file)
    kind = {"gpt_type": arguments.pop("model_type")} if "model_type" in arguments else {}
    return {**arguments, **kind}


def side(config: Config) -> int:
    """Tokens along a side of an image. Raises ModelError for a number of tokens that makes no square."""
    tokens = int(config["block_size"])
    root = math.isqrt(tokens)
    if root * root != tokens or not tokens:
        raise ModelError(f"block_size is {tokens}, which is no square number of tokens", "16x16 tokens are 256")
    return root


def _decoder(config: Config) -> DecoderConfig:
    try:
        width, heads = int(config["dim"]), int(config["n_head"])
        layers, vocab, grid = int(config["n_layer"]), int(config["vocab_size"]), side(config)
    except KeyError as error:
        raise ModelError(f"the configuration does not describe LlamaGen: {error.args[0]} is missing") from None
    if heads < 1 or width % heads or (width // heads) % 4:
        raise ModelError(f"{heads} heads over a width of {width}: a head's size has to be a multiple of 4")
    from ..layers.rope import default_frequencies

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


def to_halves(name: str, tensor: Tensor, config: DecoderConfig) -> Tensor:
    """Rows of published queries and keys, stored pair by pair, in the decoder's order: it rotates halves."""
    import torch
    from einops import rearrange

    if not name.endswith("qkv_weight"):
        return tensor
    rotated = (config.heads + config.kv_heads) * config.head_dim
    halves = rearrange(tensor[:rotated], "(h d two) e -> (h two d) e", d=config.head_dim // 2, two=2)
    return torch.cat((halves, tensor[rotated:]))


LLAMAGEN = register(
    FamilySpec(
        name="llamagen",
        summary="LlamaGen: images of a class or a caption",
        matches=lambda config: config.get("model_type") == "llamagen",
        decoder=_decoder,
        names=_NAMES,
        attention="causal",
        shift=1,
        keys=KEYS,
        harmless=(r"cls_embedding\..*", "freqs_cis"),
        pictured=(r"cls_embedding\..*",),
        convert=to_halves,
        imaging="pardec.models.images.llamagen:build",
        positions=lambda config: int(config.get("cls_token_num", 1)) + int(config["block_size"]),
    )
)
