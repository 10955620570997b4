"""Small random models of images, in the files that LlamaGen publishes, with an image tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from pardec.models.families import FAMILIES
from pardec.models.files.catalog import TOKENIZER
from pardec.models.images.vq import VQ, VQShape, save_vq
from pardec.models.loading import assemble

SIDE, CODES, CLASSES, FEATURES = 4, 16, 3, 8
SHAPE = {"dim": 32, "n_head": 2, "n_layer": 2, "vocab_size": CODES, "block_size": SIDE**2, "ffn_hidden": 32}
DEFAULTS = {"temperature": 0.9, "top_k": 12, "cfg": 2.0}


def painter(folder: Path, kind: str, *, tokenizer: int | None = CODES, side: int = SIDE, levels: int = 2) -> Path:
    """Writes a checkpoint that draws a "class" or a "text", with a tokenizer of that many codes, or without one.

    Images have `side` cells per side; the pixels per side of a cell double with each level of the tokenizer but one.
    """
    folder.mkdir(parents=True)
    places = 1 if kind == "class" else 40
    config = {"model_type": "llamagen", **SHAPE, "block_size": side**2, "cls_token_num": places}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(DEFAULTS))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        spec = FAMILIES["llamagen"]
        wanted = assemble.targets(spec, assemble.empty(spec.decoder(config)))
        tensors = {name: torch.randn(target.shape) * 0.25 for name, target in wanted.items()}
        for name in ["tok_embeddings.weight", *(name for name in tensors if name.endswith("norm.weight"))]:
            tensors[name] = tensors[name] + 1
        width = SHAPE["dim"]
        if kind == "class":
            tensors["cls_embedding.embedding_table.weight"] = torch.randn(CLASSES + 1, width)
        else:
            tensors["cls_embedding.uncond_embedding"] = torch.randn(places, FEATURES)
            tensors["cls_embedding.cap_proj.fc1.weight"] = torch.randn(width, FEATURES)
            tensors["cls_embedding.cap_proj.fc2.weight"] = torch.randn(width, width) * 0.2
        torch.save(tensors, folder / "pytorch_model.bin")
        if kind == "text":
            _reader(folder / "text_encoder")
        if tokenizer is not None:
            shape = VQShape(tokenizer, 4, z_channels=32, ch=32, ch_mult=(1,) * levels, num_res_blocks=1)
            save_vq(VQ(shape), folder / "vq.safetensors")
    return folder


def _reader(folder: Path) -> None:
    """A text encoder of random weights, with the embedded tokenizer."""
    from transformers import T5Config, T5EncoderModel

    shape = {"d_model": FEATURES, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    T5EncoderModel(T5Config(vocab_size=361, **shape)).save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
