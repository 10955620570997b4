"""Write a trained tokenizer or autoencoder in its published format, with a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from text_training.export import items, opening, rounded, write_pages

from pardec.models.images.kl import KL
from pardec.models.images.kl_files import save_kl
from pardec.models.images.vq import VQ
from pardec.models.images.vq_files import save_vq

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
    lines += ["", "## Recipe", "", *items(card["recipe"]), "", "## Curve", ""]
    lines += ["| seconds | step | loss | recognized | mean error |", "|---|---|---|---|---|"]
    for point in card["curve"]:
        shown = (
            f"{point['seconds']:.0f}",
            point["step"],
            f"{point['loss']:.3f}",
            f"{point['right']:.1%}",
            point["error"],
        )
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines)


def _page(card: dict[str, Any]) -> str:
    found = card["reconstruction"]
    lines = opening(card, "pardec image tiny-mar --class 3 -o class.png")
    lines += ["Reconstructions of fresh images of held-out captions, measured with these weights.", ""]
    lines += ["| images | recognized | recognized from sampled latents | mean error (of 255) |", "|---|---|---|---|"]
    lines += [f"| {found['pictures']} | {found['right']:.1%} | {found['right_sampled']:.1%} | {found['error']} |"]
    lines += ["", "## Recipe", "", *items(card["recipe"]), "", "## Curve", ""]
    lines += ["| seconds | step | loss | recognized | from samples | mean error |", "|---|---|---|---|---|---|"]
    for point in card["curve"]:
        shown = f"{point['seconds']:.0f} | {point['step']} | {point['loss']:.3f} | {point['right']:.1%}"
        lines.append(f"| {shown} | {point['right_sampled']:.1%} | {point['error']} |")
    return "\n".join(lines)
