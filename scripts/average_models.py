"""Averages exported models of one lineage: the mean of two runs' weights is often better than either run.

    python scripts/average_models.py runs/one runs/two --out models/embedded/tiny-dream

The runs must have started from the same weights, or one from the other. The card lists every run's recipe; its
accuracies are taken from the first run until `benchmarks/tasks.py --cards` has measured the mean itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from text_training.export import write_card  # noqa: E402


def mean(folders: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the folders' tensors, in the first one's type."""
    for folder in folders:
        if missing := [
            name for name in ("model.safetensors", "config.json", "card.json") if not (folder / name).is_file()
        ]:
            raise SystemExit(f"error: {folder} has no {missing[0]}\ngive folders that scripts/train_text.py exported")
    runs = [load_file(folder / "model.safetensors") for folder in folders]
    if any({key: x.shape for key, x in run.items()} != {key: x.shape for key, x in runs[0].items()} for run in runs):
        raise SystemExit("error: the runs hold different tensors, so that they are not of one model")
    return {
        key: torch.stack([run[key].float() for run in runs]).mean(0).to(first.dtype) for key, first in runs[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="exported folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="card.json of earlier runs, whose recipe and curve are added")
    options = parser.parse_args()
    weights = mean(options.runs)
    cards = [json.loads((folder / "card.json").read_text()) for folder in options.runs]
    card = {**cards[0], "curve": [point for made in cards for point in made["curve"]]}
    for number, made in enumerate(cards):
        if number or options.before:
            made["recipe"]["started from"] = f"run {number}" if number else "the runs before"
    card["recipe"] = {f"run {number}": made["recipe"] for number, made in enumerate(cards, 1)}
    card["recipe"] = {"weights": f"the mean of {len(cards)} runs, each from those before it", **card["recipe"]}
    if options.before:
        before = json.loads(options.before.read_text())
        card["recipe"]["runs before"] = before["recipe"]
        card["curve"] = [*before["curve"], *card["curve"]]
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.runs[0].iterdir():
        if file.is_file() and file.name not in ("model.safetensors", "card.json", "README.md"):
            shutil.copyfile(file, options.out / file.name)
    save_file(weights, options.out / "model.safetensors", metadata={"format": "pt"})
    (options.out / "model.safetensors").chmod(0o644)
    write_card(options.out, card)


if __name__ == "__main__":
    main()
