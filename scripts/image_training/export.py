"""Write a trained tokenizer in LlamaGen's format, with a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from text_training.export import items, rounded, write_pages

from pardec.models.vision.vq import VQ
from pardec.models.vision.vq_files import save_vq

__all__ = ["SUMMARY", "export", "rounded"]

SUMMARY = {
    "tiny-vq": "An image tokenizer for the package's own pictures of coloured shapes, in LlamaGen's VQ format.",
    "tiny-llamagen": "Draws the package's own pictures of coloured shapes from captions, in LlamaGen's format.",
    "tiny-llamagen-draft": "A small model of pictures that drafts for tiny-llamagen, in LlamaGen's format.",
}


def export(folder: Path, model: VQ, card: dict[str, Any]) -> None:
    """Write the folder, each file replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    save_vq(model, folder / "vq.safetensors", dtype=torch.bfloat16)
    write_pages(folder, card, _readme(card))


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
