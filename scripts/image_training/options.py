"""The options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Options:
    """The command line; see scripts/train_image.py."""

    model: str
    minutes: float | None
    steps: int | None
    batch: int
    lr: float
    seed: int
    every: float
    pictures: int
    device: str
    threads: int
    out: Path
    state: Path
    fresh: bool
    shape: dict[str, object]
    init: Path | None = None
    teacher: Path | None = None
    refiner: Path | None = None
    corpus: Path | None = None
    chunks: int = 40
    measure: bool = False
    compile: bool = False
    autoencoder: Path | None = None
    tokenizer: Path | None = None
