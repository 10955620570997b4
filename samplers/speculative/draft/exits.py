"""Exits of a model: the layers after which a drafter can stop, and forwards of a part of the layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.plan import Plan, Visible

from ...host_transfer import upload


def parse_exits(method: str, text: str | None) -> tuple[int, ...] | None:
    """The layers that "2-4-6" names, counted from 1. Raises SpecError unless they are rising numbers.

    >>> parse_exits("sorted", "2-4-6")
    (2, 4, 6)
    """
    if text is None:
        return None
    parts = text.split("-")
    exits = tuple(int(part) for part in parts if part.isdecimal() and len(part) < 6)
    if len(exits) < len(parts) or exits[0] < 1 or any(later <= earlier for earlier, later in pairwise(exits)):
        raise SpecError(
            f"{method}: exits lists rising numbers of layers joined by '-', got {text!r}",
            hint=f"{method}:exits=2-4 can stop after the first 2 layers, and after the first 4",
        )
    return exits


def fitting_exits(method: str, exits: tuple[int, ...], most: int, name: str) -> tuple[int, ...]:
    """Returns `exits`; raises SpecError if one is after layer `most`, the last at which the model `name` can stop."""
    if not exits or exits[-1] > most:
        raise SpecError(
            f"{method}: exits of {name} must be at most {most}, got {'-'.join(map(str, exits)) or 'none'}",
            hint="use fewer layers, or draft with another method" if most < 1 else f"{method}:exits={most}",
        )
    return exits


def of_rows(plan: Plan, rows: np.ndarray, **changes: Any) -> Plan:
    """The part of `plan` for these of its rows, which are the cache's rows; `changes` replace fields."""
    if len(rows) == plan.batch:
        return replace(plan, **changes)
    index = upload(rows, plan.tokens.device)
    visible = plan.visible
    if visible.dense is not None:
        visible = Visible.mask(visible.dense[index], visible.before)
    elif visible.parents is not None and visible.base is not None:
        parents = visible.parents if visible.parents.dim() == 1 else visible.parents[index]
        visible = Visible.tree(parents, visible.base[index])
    parts = {name: getattr(plan, name)[index] for name in ("tokens", "positions", "slots", "lengths", "want")}
    return replace(plan, visible=visible, rows=index, **parts, **changes)


def all_copies(rows: np.ndarray, batch: int, copies: int, device: torch.device) -> Tensor:
    """[copies * n]: the indices of these rows [n] of `batch` and of the copies of them that guidance adds."""
    return upload(np.concatenate([rows + copy * batch for copy in range(copies)]), device)
