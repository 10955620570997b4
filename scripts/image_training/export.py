"""Write a trained tokenizer or autoencoder in its published format, with a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from text_training.export import items, rounded, write_pages

from pardec.models.images.kl import KL
from pardec.models.images.kl_files import save_kl
from pardec.models.images.vq import VQ
from pardec.models.images.vq_files import save_vq

__all__ = ["SUMMARY", "export", "export_kl", "rounded"]

SUMMARY = {
    "tiny-vq": "An image tokenizer for the package's own pictures of coloured shapes, in LlamaGen's VQ format.",
    "tiny-kl": "A KL autoencoder for the package's own pictures of coloured shapes, in latent diffusion's format.",
    "tiny-mar": "Draws the package's own pictures of one coloured shape from its class, in MAR's format.",
    "tiny-mar-draft": "A small model of pictures that drafts for tiny-mar, in MAR's format.",
    "tiny-llamagen": "Draws the package's own pictures of coloured shapes from captions, in LlamaGen's format.",
    "tiny-llamagen-draft": "A small model of pictures that drafts for tiny-llamagen, in LlamaGen's format.",
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
    lines = [f"# {card['name']}", "", card["summary"], "", "## Measured", ""]
    lines += ["Reconstructions of fresh pictures of held-out captions, with these very weights.", ""]
    lines += [
        "| pictures | read back right | mean error (of 255) | codes used | entropy of a code |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {found['pictures']} | {found['right']:.1%} | {found['error']} | {found['codes_used']} "
        f"| {found['code_entropy_nats']} nats |"
    ]
    lines += ["", "## Recipe", "", *items(card["recipe"]), "", "## Curve", ""]
    lines += ["| seconds | step | loss | read back right | mean error |", "|---|---|---|---|---|"]
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
    lines = [f"# {card['name']}", "", card["summary"], "", "## Measured", ""]
    lines += ["Reconstructions of fresh pictures of held-out captions, with these very weights.", ""]
    lines += ["| pictures | read back right | from samples of the latents | mean error (of 255) |", "|---|---|---|---|"]
    lines += [f"| {found['pictures']} | {found['right']:.1%} | {found['right_sampled']:.1%} | {found['error']} |"]
    lines += ["", "## Recipe", "", *items(card["recipe"]), "", "## Curve", ""]
    lines += ["| seconds | step | loss | read back right | from samples | mean error |", "|---|---|---|---|---|---|"]
    for point in card["curve"]:
        shown = f"{point['seconds']:.0f} | {point['step']} | {point['loss']:.3f} | {point['right']:.1%}"
        lines.append(f"| {shown} | {point['right_sampled']:.1%} | {point['error']} |")
    return "\n".join(lines)
