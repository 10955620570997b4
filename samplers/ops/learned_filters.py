"""Learned filters: small networks that predict, from a block's confidences, which candidates are final."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pardec.models.errors import SpecError, did_you_mean, one_line
from pardec.models.files.catalog import EMBEDDED

FILTERS = EMBEDDED / "filters"
WEIGHTS = "filter.safetensors"


class Filter(nn.Module):
    """A two-layer network over the confidences of one block: [B, W] probabilities -> [B, W] logits."""

    def __init__(self, block_length: int, hidden: int) -> None:
        super().__init__()
        self.block_length = block_length
        self.hidden, self.out = nn.Linear(block_length, hidden), nn.Linear(hidden, block_length)

    def forward(self, confidences: Tensor) -> Tensor:
        return self.out(torch.relu(self.hidden(confidences)))  # type: ignore[no-any-return]


def filter_names() -> list[str]:
    """Names of the filters that ship with the package, sorted."""
    return sorted(entry.parent.name for entry in FILTERS.glob(f"*/{WEIGHTS}"))


def locate_filter(name: str) -> tuple[Path, str | None]:
    """The file that `name` refers to, and the function in it if it is a Python file.
    Raises SpecError for an unknown name.
    """
    path, _, function = name.partition(".py:")
    if function:
        file = Path(os.path.expanduser(path + ".py"))
        if not file.is_file():
            raise SpecError(
                f"learned: there is no file {file}", hint='a function is named as filter="file.py:function"'
            )
        return file, function
    if name in filter_names():
        return FILTERS / name / WEIGHTS, None
    file = Path(os.path.expanduser(name)) / WEIGHTS
    if not file.is_file():
        raise SpecError(
            f"learned: unknown filter {name!r}{did_you_mean(name, filter_names())}",
            hint=f"it is one of {', '.join(filter_names())}, a folder with {WEIGHTS}, or file.py:function",
        )
    return file, None


@dataclass(frozen=True, slots=True)
class FilterInfo:
    """A filter's metadata."""

    model: str | None = None  # the model whose traces it was trained on
    tau: float = 0.97  # the threshold of its evaluation; the default suits the embedded filter


def filter_info(name: str) -> FilterInfo:
    """The metadata of the filter that `name` refers to; a Python function has none."""
    file, function = locate_filter(name)
    if function:
        return FilterInfo()
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
        return FilterInfo(metadata.get("model"), float(metadata.get("tau", FilterInfo().tau)))
    except (SafetensorError, OSError, ValueError) as error:
        raise _no_filter(file, error) from error


def load_filter(name: str) -> nn.Module:
    """The network that `name` refers to, ready for inference; `block_length` is the length of blocks that it judges.
    Raises SpecError if the file holds no filter.
    """
    file, function = locate_filter(name)
    network = _call(file, function) if function else _read(file)
    return network.eval().requires_grad_(False)


def _read(file: Path) -> Filter:
    try:
        weights = load_file(file)
        network = Filter(*reversed(weights["hidden.weight"].shape))
        network.load_state_dict(weights)
    except (SafetensorError, OSError, KeyError, TypeError, RuntimeError) as error:
        raise _no_filter(file, error) from error
    return network


def _no_filter(file: Path, error: Exception) -> SpecError:
    return SpecError(f"learned: {file} holds no filter: {one_line(error)}", hint="scripts/train_filter.py writes one")


def _call(file: Path, function: str) -> nn.Module:
    spec = importlib.util.spec_from_file_location(f"pardec_filter_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make: Any = getattr(module, function, None)
    network = make() if callable(make) else None
    if not isinstance(network, nn.Module):
        what = "does not exist" if make is None else f"gives a {type(network).__name__}, not a torch.nn.Module"
        raise SpecError(
            f"learned: {function} of {file} {what}", hint="the function takes no arguments and returns the network"
        )
    return network
