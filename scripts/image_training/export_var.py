"""Write the trained models of several scales in VAR's published layout, with cards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from text_training.export import opening, write_pages
from torch import Tensor

from image_training.export import error, export_model, record, share
from image_training.scale_network import ScaleNetwork
from pardec.models.scales.tokenizer import MultiScaleVQ
from pardec.models.scales.tokenizer_files import save_tokenizer

DEFAULTS = {"cfg": 3.0, "top_k": 128, "top_p": 0.9, "temperature": 1.0}  # the model's generation defaults


def export_tokenizer(folder: Path, model: MultiScaleVQ, card: dict[str, Any], *, encoder: bool = True) -> None:
    """Write the folder of a tokenizer, each file replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    if not encoder:
        whole, model = model, MultiScaleVQ(replace(model.shape, encoder=False), model.scales)
        state = whole.state_dict()
        model.load_state_dict({name: state[name] for name in model.state_dict()})
    save_tokenizer(model, folder / "vae.safetensors", dtype=torch.bfloat16)
    card = {**card, "parameters": sum(value.numel() for value in model.parameters()), "encoder": encoder}
    write_pages(folder, card, _tokenizer_page(card))


def _tokenizer_page(card: dict[str, Any]) -> str:
    measured = card["reconstruction"]
    lines = opening(card, "pardec image tiny-var --class 3 -o class.png")
    if not card["encoder"]:
        lines += ["These files decode; the encoder is left out, as drawing images needs none.", ""]
    lines += ["Reconstructions of fresh images of classes, measured with these weights.", ""]
    lines += [
        "| images | right | from the first scales alone | mean error (of 255) | codes used | entropy of a code |",
        "|---|---|---|---|---|---|",
    ]
    early = ", ".join(f"{value:.1%}" for value in measured["right_by_scale"][:-1])
    lines += [
        f"| {measured['pictures']} | {measured['right']:.1%} | {early} | {measured['error']} "
        f"| {measured['codes_used']} | {measured['code_entropy_nats']} nats |"
    ]
    return "\n".join([*lines, *record(card, {"right": share("right"), "mean error": error})])


def export(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], card: dict[str, Any]) -> None:
    """Write the folder of a model; `weights` of the whole network, rounded to 16 bit already."""
    export_model(folder, config, DEFAULTS, weights)
    write_pages(folder, card, page(card))


def loaded(folder: Path) -> ScaleNetwork:
    """An exported model, without gradients."""
    model = ScaleNetwork(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model.load_state_dict({name: value.float() for name, value in load_file(folder / "model.safetensors").items()})
    return model.eval().requires_grad_(False)


def page(card: dict[str, Any]) -> str:
    measured, name = card["classes"], card["name"]
    draft = f" -s code:refiner={name},steps=3" if name.endswith("-draft") else ""
    large = name.removesuffix("-draft")
    lines = opening(card, f"pardec image {large}{draft} --class 3 -o class.png")
    if measured:
        lines += ["Images of classes drawn evenly, measured with these weights.", ""]
        lines += ["| sampler | images | right | one object | shape | colour | size | FID (own features) |"]
        lines += ["|---|---|---|---|---|---|---|---|", _row(name, measured)]
        if "late" in measured:
            lines.append(_row(large, measured["late"]))
    return "\n".join([*lines, *record(card, {"right": share("right")})])


def _row(model: str, measured: dict[str, Any]) -> str:
    shares = " | ".join(f"{measured[of]:.1%}" for of in ("count", "shape", "colour", "size"))
    right = f"{measured['right']:.1%} ({measured['right_from']:.1%} to {measured['right_to']:.1%})"
    how = f"{model}: {measured['settings']}"
    return f"| {how} | {measured['pictures']} | {right} | {shares} | {measured['distance']} |"
