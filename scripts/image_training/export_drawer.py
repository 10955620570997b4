"""Write a trained image model in LlamaGen's format, with its text encoder and a card; load one as a teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from text_training.export import opening, write_pages
from torch import Tensor, nn

from image_training import words
from image_training.export import export_model, record, share
from image_training.network import Drawer, text_encoder
from pardec.models.files.catalog import EMBEDDED
from pardec.models.hf.hf_logging import silence

DEFAULTS = {"temperature": 0.7, "top_k": 64, "cfg": 2.5}  # the model's generation defaults


def export(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], card: dict[str, Any]) -> None:
    """Write the folder; `weights` of the whole network, rounded to 16 bit already."""
    reads = _part(weights, "reader")
    said = dict(config) if reads else {**config, "text_encoder": "tiny-llamagen"}
    export_model(folder, said, DEFAULTS, _part(weights, "drawer"))
    if reads:
        encoder = _reader(config)
        encoder.load_state_dict(reads)
        with silence():
            encoder.to(torch.bfloat16).save_pretrained(folder / "text_encoder")
            words.tokenizer().save_pretrained(folder / "text_encoder")
    write_pages(folder, card, page(card))


def loaded(folder: Path) -> dict[str, nn.Module]:
    """The parts of an exported model, as a teacher: no gradients."""
    from transformers import BertModel

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    drawer = Drawer(config)
    state = load_file(folder / "model.safetensors")
    drawer.load_state_dict({name: value.float() for name, value in state.items()})
    reading = folder / "text_encoder"
    if not reading.is_dir():
        reading = EMBEDDED / config["text_encoder"] / "text_encoder"
    with silence():
        reader = BertModel.from_pretrained(reading, add_pooling_layer=False, dtype=torch.float32)
    return {name: part.eval().requires_grad_(False) for name, part in (("drawer", drawer), ("reader", reader))}


def _reader(config: dict[str, Any]) -> Any:
    return text_encoder(len(words.vocabulary()), config["caption_dim"], 2, config["cls_token_num"], words.PAD)


def _part(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(name + "."): value for key, value in weights.items() if key.startswith(name + ".")}


def page(card: dict[str, Any]) -> str:
    found = card["captions"]
    name = card["name"]
    draft = f" -s model:name={name}" if name.endswith("-draft") else ""
    base = name.removesuffix("-draft")
    lines = opening(card, f'pardec image {base}{draft} -p "a red circle on white" -o circle.png')
    if found:
        lines += [f"Images of held-out captions ({found['settings']}), measured with these weights.", ""]
        lines += [
            "| images | captions fully right | one object | two objects | FID (own features) |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {found['pictures']} | {found['right']:.1%} ({found['right_from']:.1%} to {found['right_to']:.1%}) "
            f"| {found['one']:.1%} of {found['ones']} | {found['two']:.1%} of {found['twos']} | {found['distance']} |"
        ]
    return "\n".join([*lines, *record(card, {"captions right": share("right"), "one object": share("one")})])
