"""Writes the trained masked model as a checkpoint folder in Fast-dLLM v2's format, which pardec loads, with a card.

    scripts/gpu_queue --export FILE.gguf FOLDER

The weights are SmolLM2's and the difference that the training's state holds; the tokenizer is that of the GGUF file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_runs import difference
from gpu_runs.smollm2 import Shape, carried, read

JUDGED = Path(__file__).resolve().parents[2] / "benchmarks" / "masked_answers.md"


def write(folder: Path, shape: Shape, tensors: dict[str, Tensor], template: dict[str, Any], block: int) -> None:
    """The configuration and the weights; Qwen2's biases, which a Llama lacks, are zero."""
    config = {
        "model_type": "Fast_dLLM_Qwen",
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        **shape.config(template["end"]),
        "mask_token_id": template["mask"],
        "bd_size": block,
        "bos_token_id": 1,
    }
    biases = {
        name.replace(".weight", ".bias"): torch.zeros(len(values), dtype=values.dtype)
        for name, values in tensors.items()
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    whole = {name: values.contiguous() for name, values in (tensors | biases).items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def export(gguf: Path, folder: Path, state: Path) -> int:
    """Rebuilds the model from SmolLM2's GGUF file and the state; returns 2 if one of them is missing, else 0."""
    import pardec
    from gpu_runs.training import Recipe

    found = difference.load(state)
    if found is None or not gguf.is_file():
        print(
            f"error: {state if found is None else gguf} holds no {'state' if found is None else 'model'}",
            file=sys.stderr,
        )
        print(
            "scripts/get_smollm2 prints the file's path; git sparse-checkout disable brings the state", file=sys.stderr
        )
        return 2
    parent = pardec.load(gguf, device="cpu", dtype="float32")
    shape, template, base = read(carried(gguf, parent))
    content, about = found
    changes = difference.decode(shape, content)
    tensors = {name: (base[name] + changes[name]).to(torch.bfloat16) for name in base}
    write(folder, shape, tensors, template, Recipe.block)
    parent.tokenizer.save_pretrained(folder)
    trained, steps = float(about["tokens"]), int(about["step"])
    tokens, unfinished = f"{trained / 1e6:.1f} million", ""
    if not about["finished"]:
        tokens = f"{trained / 1e6:.1f} of {Recipe.total / 1e6:.0f} million"
        unfinished = ", with the training not finished"
    card: dict[str, Any] = {
        "name": folder.name,
        "summary": f"SmolLM2-135M-Instruct adapted to a masked model{unfinished}.",
        "recipe": {"script": "scripts/gpu_queue, entry e", "steps": steps, "tokens": tokens, **encoding(about)},
        "judged": judged(JUDGED.read_text(encoding="utf-8"), steps) if JUDGED.is_file() else {},
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    print(f"{folder.name}: SmolLM2 as a masked model after {tokens} tokens{unfinished}")
    for what, figure in card["judged"].items():
        print(f"  {what}: {figure}")
    return 0


def encoding(about: dict[str, Any]) -> dict[str, str]:
    """The validation loss before and after encoding, as `--encode` measured it; empty for an unfinished training."""
    if "encoded" not in about:
        return {}
    before, after = about["encoded"]
    return {"validation loss": f"{after:.3f}; {before:.3f} before the difference was encoded"}


def judged(page: str, steps: int) -> dict[str, str]:
    """The figures of the page of masked_answers.py, decoded one token at a time; none if it judges another state."""
    if f"Trained: {steps} steps," not in page:
        return {}
    tables = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    answers = next(dict(zip(tables[0], cells, strict=True)) for cells in tables if cells[0].startswith("`sequential"))
    endings = dict(cells for cells in tables if len(cells) == 2)["`likelihood`"]
    return {
        "nats per token to SmolLM2's own answers": answers["to the parent's"],
        "empty answers": answers["empty"],
        "right endings of sentences, of 30": endings,
        "measured in": "benchmarks/masked_answers.md",
    }
