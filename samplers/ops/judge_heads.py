"""Heads of the acceptance `judge`: linear probes of the target's state at a drafted token."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pardec.models.errors import ModelError, SpecError, did_you_mean, one_line
from pardec.models.files.catalog import EMBEDDED
from pardec.models.files.sources import read_json

JUDGES = EMBEDDED / "judges"
WEIGHTS, CONFIG = "head.safetensors", "config.json"
_WEIGHTS = ("mean", "scale", "w", "b")


@dataclass(frozen=True, eq=False)
class JudgeHead:
    """P(important) = sigmoid(w . (h - mean) / scale + b), h the target's state after the final norm."""

    mean: Tensor  # [E] float32
    scale: Tensor  # [E]
    w: Tensor  # [E]
    b: Tensor  # []
    target: str | None = None  # the model whose states it was trained on
    thr: float | None = None  # the threshold of its evaluation

    @property
    def width(self) -> int:
        """The width E of the states."""
        return len(self.w)

    def to(self, device: torch.device) -> JudgeHead:
        """The head on `device`."""
        weights = {name: getattr(self, name).to(device) for name in _WEIGHTS}
        return replace(self, **weights)

    def __call__(self, states: Tensor) -> Tensor:
        """[...] float32: the probability that a token matters, given the state [..., E] at it."""
        logits: Tensor = ((states.float() - self.mean) / self.scale) @ self.w + self.b
        return logits.sigmoid()

    def save(self, folder: Path) -> None:
        """Writes the weights and config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: getattr(self, name).contiguous() for name in _WEIGHTS}
        save_file(weights, folder / WEIGHTS)
        config = {"model_type": "judge", "target": self.target, "width": self.width, "thr": self.thr}
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def judge_names() -> list[str]:
    """Names of the heads that ship with the package, sorted."""
    return sorted(entry.parent.name for entry in JUDGES.glob(f"*/{WEIGHTS}"))


def locate_judge(name: str) -> Path:
    """The folder of the head that `name` refers to. Raises SpecError for an unknown name."""
    if name in judge_names():
        return JUDGES / name
    folder = Path(os.path.expanduser(name))
    if not (folder / WEIGHTS).is_file():
        known = f"one of {', '.join(judge_names())}, or " if judge_names() else ""
        raise SpecError(
            f"judge: unknown head {name!r}{did_you_mean(name, judge_names())}",
            hint=f"it is {known}a folder with {WEIGHTS} and {CONFIG}, as scripts/train_judge.py writes it",
        )
    return folder


@lru_cache(maxsize=4)
def _read(folder: Path, modified: int) -> JudgeHead:
    """Reads the head in a folder; `modified`, the time of its weights in nanoseconds, is part of the cache key."""
    config = read_json(folder / CONFIG, required=True)
    try:
        weights = load_file(folder / WEIGHTS)
        read = {name: weights[name].float() for name in _WEIGHTS}
    except (SafetensorError, OSError, KeyError) as error:
        raise ModelError(f"{folder / WEIGHTS} holds no head of a judge: {one_line(error)}") from error
    head = JudgeHead(**read, target=config.get("target"), thr=config.get("thr"))
    shapes = [tuple(each.shape) for each in read.values()]
    if shapes != [(head.width,)] * 3 + [()] or config.get("width", head.width) != head.width:
        raise ModelError(
            f"{folder} holds a head of the shapes {shapes}, and its config says width {config.get('width')}",
            "mean, scale and w have the width of the target's states, and b is a scalar",
        )
    return head


def load_judge(name: str) -> JudgeHead:
    """The head that `name` refers to. Raises SpecError for an unknown name, ModelError for files without a head."""
    folder = locate_judge(name)
    return _read(folder, (folder / WEIGHTS).stat().st_mtime_ns)
