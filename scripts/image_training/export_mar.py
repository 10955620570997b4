"""Write a trained model of classes in MAR's format, with a card; read one back to draw or to teach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from text_training.export import opening, write_pages
from torch import Tensor, nn

from image_training.export import export_model, record, share
from pardec.models.continuous.diffusion_head import MARHead
from pardec.models.continuous.mar import MARBackbone
from pardec.models.families.mar import networks

DEFAULTS = {"temperature": 1.0, "cfg": 3.0}  # the model's generation defaults
_HEAD = "diffloss.net."  # prefix of the published names of the head's tensors


class Network(nn.Module):
    """A backbone and its head."""

    def __init__(self, backbone: MARBackbone, head: MARHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head


def network(config: dict[str, Any]) -> Network:
    """The network of a config.json, its weights not yet set."""
    cells = config["img_size"] // config["vae_stride"]
    return Network(*networks({**config, "tokens": cells**2, "token_size": config["vae_embed_dim"]}))


def export(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], card: dict[str, Any]) -> None:
    """Write the folder; `weights` of the whole network, rounded to 16 bit already."""
    export_model(folder, config, DEFAULTS, {published(name): value for name, value in weights.items()})
    write_pages(folder, card, page(card))


def published(name: str) -> str:
    """The published name of a tensor of a network."""
    return name.removeprefix("backbone.") if name.startswith("backbone.") else _HEAD + name.removeprefix("head.")


def loaded(folder: Path) -> Network:
    """An exported model, without gradients."""
    model = network(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    state = load_file(folder / "model.safetensors")
    model.load_state_dict({name: state[published(name)].float() for name in model.state_dict()})
    return model.eval().requires_grad_(False)


def page(card: dict[str, Any]) -> str:
    found = card["classes"]
    name = card["name"]
    draft = f" -s cspd:draft={name}" if name.endswith("-draft") else ""
    lines = opening(card, f"pardec image {name.removesuffix('-draft')}{draft} --class 3 -o class.png")
    if found:
        lines += [f"Images of classes drawn evenly ({found['settings']}), measured with these weights.", ""]
        lines += [
            "| images | right | one object | shape | colour | size | FID (own features) |",
            "|---|---|---|---|---|---|---|",
        ]
        shares = " | ".join(f"{found[of]:.1%}" for of in ("count", "shape", "colour", "size"))
        right = f"{found['right']:.1%} ({found['right_from']:.1%} to {found['right_to']:.1%})"
        lines += [f"| {found['pictures']} | {right} | {shares} | {found['distance']} |"]
    return "\n".join([*lines, *record(card, {"right": share("right")})])
