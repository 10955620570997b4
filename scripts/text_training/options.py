"""The options of a training run."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path


def refuse_options_of_others(
    parser: argparse.ArgumentParser, given: argparse.Namespace, chosen: str, owners: Mapping[str, Collection[str]]
) -> None:
    """Ends with an error for an option that the value of --`chosen` does not have; `owners`: the values that do."""
    for option, values in owners.items():
        value = getattr(given, option)
        if value is not None and value is not False and getattr(given, chosen) not in values:
            name = option.replace("_", "-")
            parser.error(f"--{name} is an option of {', '.join(values)}, and --{chosen} is {getattr(given, chosen)}")


def task_shares(text: str) -> dict[str, float]:
    """The share of each task, of arithmetic=0.6,lists=0.4."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    try:
        shares = {name: float(share) for name, _, share in pairs}
    except ValueError:
        shares = {}
    if len(shares) != len(pairs) or not shares or min(shares.values()) <= 0:
        raise argparse.ArgumentTypeError(f"must be tasks with positive shares, such as arithmetic=1, got {text!r}")
    return shares


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
