"""Columns of a canvas: added where a longer row joins, and rearranged where edits move tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GIVEN = -1  # commit_step of a token that the request gave
NEVER = -2  # commit_step of a position that was never committed


def rearrange(columns: Sequence[tuple[Tensor, Tensor | float]], window: Tensor, source: Tensor) -> None:
    """Every position of the block takes over what `columns` know of position `source` [B, W] of it.

    Args:
        columns: [B, L + 1] each, written in place, with what stands there of a new mask, where `source` is -1.
        window: [B, W] the positions of the block.
    """
    new, at = source < 0, source.clamp(min=0)
    for tensor, blank in columns:
        fresh = torch.as_tensor(blank, dtype=tensor.dtype, device=tensor.device)
        tensor.scatter_(1, window, torch.where(new, fresh, tensor.gather(1, window).gather(1, at)))


def widened(values: Tensor, more: int, blank: float) -> Tensor:
    """`values` [B, L + 1] with `more` columns of `blank` before the last one, the bin."""
    with torch.inference_mode(False), torch.no_grad():
        columns = values.new_full((len(values), more), blank)
        return torch.cat([values[:, :-1], columns, values[:, -1:]], 1)
