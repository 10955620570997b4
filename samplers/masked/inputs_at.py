"""What a group of rows feeds at its queries: vectors of the active block, and random tokens in place of masks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .canvas import Canvas
from .contracts import Request
from .layout import Group


def at_queries(soft: Tensor, group: Group, canvas: Canvas) -> Tensor:
    """`soft` [n, W, E] of the group's rows in the block, at its queries [n, Q, E]; zero elsewhere."""
    lo = torch.from_numpy(canvas.lo if group.rows is None else canvas.lo[group.rows]).to(soft.device)
    at = group.plan.positions[: len(soft)] - lo[:, None]
    outside = (at < 0) | (at >= soft.shape[1])
    values = soft.gather(1, at.masked_fill(outside, 0)[..., None].expand(-1, -1, soft.shape[-1]))
    return values.masked_fill(outside[..., None], 0)


def noised(tokens: Tensor, group: Group, canvas: Canvas, request: Request, vocab: int) -> Tensor:
    """The tokens [n, Q] of a group, random ones at open positions: others at each step."""
    at = group.plan.positions[: len(tokens)]
    rows = np.arange(len(canvas)) if group.rows is None else group.rows
    uniform = request.source.uniform(canvas.rows[rows], canvas.step[rows], at.clamp(min=0), "noise")
    noise = (uniform * vocab).long().clamp(max=vocab - 1)
    return torch.where(tokens == canvas.mask_id, noise, tokens)
