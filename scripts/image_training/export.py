"""Write a trained tokenizer or autoencoder in its published format, with a card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from text_training.export import items, opening, rounded, write_pages
from torch import Tensor

from pardec.models.images.kl import KL, save_kl
from pardec.models.images.vq import VQ, save_vq
from pardec.models.images.weight_files import write_tensors

__all__ = ["SUMMARY", "export", "export_kl", "rounded"]

SUMMARY = {
    "tiny-vq": "An image tokenizer for pardec's own images of coloured shapes, in LlamaGen's VQ format.",
    "tiny-kl": "A KL autoencoder for pardec's own images of coloured shapes, in latent diffusion's format.",
    "tiny-var-vq": "A tokenizer of several scales for pardec's own images of one coloured shape, in VAR's format.",
    "tiny-var": "Draws pardec's own images of one coloured shape from its class, scale by scale, in VAR's format.",
    "tiny-var-draft": "A small image model that draws the late scales for tiny-var, in VAR's format.",
    "tiny-mar": "Draws pardec's own images of one coloured shape from its class, in MAR's format.",
    "tiny-mar-draft": "A small image model that drafts for tiny-mar, in MAR's format.",
    "tiny-llamagen": "Draws pardec's own images of coloured shapes from captions, in LlamaGen's format.",
    "tiny-llamagen-draft": "A small image model that drafts for tiny-llamagen, in LlamaGen's format.",
}


def record(card: dict[str, Any], columns: Mapping[str, Callable[[dict[str, Any]], object]]) -> list[str]:
    """The page's recipe, and its curve with these columns after seconds, step and loss."""
    every: Mapping[str, Callable[[dict[str, Any]], object]] = {
        "seconds": lambda point: f"{point['seconds']:.0f}",
        "step": lambda point: point["step"],
        "loss": lambda point: f"{point['loss']:.3f}",
        **columns,
    }
    rows = [f"| {' | '.join(str(column(point)) for column in every.values())} |" for point in card["curve"]]
    head = [f"| {' | '.join(every)} |", "|" + "---|" * len(every)]
    return ["", "## Recipe", "", *items(card["recipe"]), "", "## Curve", "", *head, *rows]


def share(key: str) -> Callable[[dict[str, Any]], str]:
    """A column of percentages."""
    return lambda point: f"{point[key]:.1%}"


def error(point: dict[str, Any]) -> object:
    """The column of the mean error."""
    return point["error"]


def with_figures(card: dict[str, Any], found: dict[str, Any], *, of: str, sampler: str) -> dict[str, Any]:
    """The card with the measurements on its images `of` classes or captions, which `sampler` generated."""
    counts = found and {"problems": {of: found["pictures"]}, of: found["right"], f"{of}_nfe": found["forwards"]}
    return {**card, of: found, "accuracy": counts and {sampler: counts}}


def export_model(folder: Path, config: dict[str, Any], defaults: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a model's weights, rounded to 16 bit already, its configuration and its generation defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", {name: value.bfloat16() for name, value in tensors.items()})
    for name, values in (("config", config), ("generation_config", defaults)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def export(folder: Path, model: VQ, card: dict[str, Any]) -> None:
    """Write the folder, each file replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    save_vq(model, folder / "vq.safetensors", dtype=torch.bfloat16)
    write_pages(folder, card, _readme(card))


def export_kl(folder: Path, model: KL, card: dict[str, Any]) -> None:
    """Write the folder of an autoencoder, each file replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    save_kl(model, folder / "kl.safetensors", dtype=torch.bfloat16)
    write_pages(folder, card, _page(card))


def _readme(card: dict[str, Any]) -> str:
    found = card["reconstruction"]
    lines = opening(card, 'pardec image tiny-llamagen -p "a red circle on white" -o circle.png')
    lines += ["Reconstructions of fresh images of held-out captions, measured with these weights.", ""]
    lines += [
        "| images | recognized | mean error (of 255) | codes used | entropy of a code |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {found['pictures']} | {found['right']:.1%} | {found['error']} | {found['codes_used']} "
        f"| {found['code_entropy_nats']} nats |"
    ]
    return "\n".join([*lines, *record(card, {"recognized": share("right"), "mean error": error})])


def _page(card: dict[str, Any]) -> str:
    found = card["reconstruction"]
    lines = opening(card, "pardec image tiny-mar --class 3 -o class.png")
    lines += ["Reconstructions of fresh images of held-out captions, measured with these weights.", ""]
    lines += ["| images | recognized | recognized from sampled latents | mean error (of 255) |", "|---|---|---|---|"]
    lines += [f"| {found['pictures']} | {found['right']:.1%} | {found['right_sampled']:.1%} | {found['error']} |"]
    return "\n".join(
        [
            *lines,
            *record(card, {"recognized": share("right"), "from samples": share("right_sampled"), "mean error": error}),
        ]
    )
