"""Maps recorded cases to a spec and arguments of `generate`: one module per recorded code base.

`CALLS` of a module maps methods to them. Cases that no text model decodes are replayed by the module itself: `REPLAYS`
has their functions by method, or by set/method where sets share a method.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

import pardec

Case = dict[str, Any]
Call = tuple[str, dict[str, Any]]  # a spec and the arguments of generate
Reader = Callable[[Case], Call | None]  # None: pardec does not build what the case records

Pure = Callable[..., str | None]  # (case, ...) -> what differs first
Replay = Callable[[Case, Path, dict[str, Tensor]], str | None]  # (case, set, its tensors) -> what differs first

TOLERANCE = 1e-4  # tolerance of logits and pixels, relative to the largest of the tensor


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest error in units of the largest expected value."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max())


@lru_cache(maxsize=8)
def load(folder: Path, block: int | None = None) -> pardec.Model:
    """The checkpoint, in float32 on the CPU; `block` is its block length where it is block-causal."""
    more = {} if block is None else {"block": block}
    return pardec.load(folder, device="cpu", dtype="float32", **more)


CALLS: dict[str, Reader] = {}  # by the case's method; a module defines those of these three tables that it needs
PURE: dict[str, Pure] = {}  # cases without a decode, by method
REPLAYS: dict[str, Replay] = {}
for _module in pkgutil.iter_modules(__path__):
    _found = importlib.import_module(f"{__name__}.{_module.name}")
    CALLS |= getattr(_found, "CALLS", {})
    PURE |= getattr(_found, "PURE", {})
    REPLAYS |= getattr(_found, "REPLAYS", {})
