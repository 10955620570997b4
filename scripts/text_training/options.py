"""The options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Options:
    """The command line; see scripts/train_text.py."""

    model: str
    init: Path | None
    teacher: Path | None
    minutes: float | None
    steps: int | None
    until: float | None
    batch: int
    lr: float
    optimizer: str
    focus: float
    stale: float
    seed: int
    every: float
    problems: int
    device: str
    threads: int
    compile: bool
    mix: dict[str, float]
    tokenizer: Path
    out: Path
    state: Path
    fresh: bool
    shape: dict[str, int]
    exits: tuple[int, ...] = ()  # layers after which the head learns too; none: after the last alone
