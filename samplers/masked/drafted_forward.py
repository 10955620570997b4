"""Leave-one-out predictions of a block whose likely masks are filled with the last forward's tokens.

A forward also computes copies of the block's positions, after the canvas, which does not see them:

- a token copy of each open position p that is drafted: the likeliest token of p by the last forward;
- a copy of the position r whose output predicts each open position p: p itself, or p - 1 in a shifted family. Its input
  is the mask if r = p, else what the filled canvas has at r.

Both see the canvas without its drafted positions, and the token copies in their place. A copy that predicts p sees
itself in place of r, and of p no more than its mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

from ..host_transfer import upload
from .canvas import Canvas
from .contracts import Evidence, MaskedSampler
from .predict import LeaveOneOut, LeaveOneOutForward
from .query_plan import Group, Layout


class DraftedForward(LeaveOneOutForward):
    """A forward whose leave-one-out predictions see drafted tokens.

    Attributes:
        drafted: [B, L + 1] bool on the host: the positions that had a likely token in the last forward.
        likely: [B, L + 1] int64: these tokens.
    """

    per_row = ("drafted", "likely")

    def __init__(self, model: LanguageModel, canvas: Canvas, sampler: MaskedSampler, *more: Any, **named: Any) -> None:
        least = sampler.select.drafts_above
        assert least is not None, "the select asks for drafts"
        self.least = least
        self.drafted: np.ndarray = np.zeros(canvas.open_host.shape, dtype=bool)
        self.likely = torch.zeros_like(canvas.tokens)
        super().__init__(model, canvas, sampler, *more, **named)

    @property
    def extra_slots(self) -> int:
        return 2 * self.leave_one_out

    def _layout(self, layout: Layout) -> Layout:
        return DraftedLayout(**vars(layout), forward=self)

    def _own_hooks(self) -> object:
        return Drafts(self)

    def note(self, read: Mapping[str, np.ndarray]) -> None:
        """Keeps which positions the last forward has drafted."""
        self.drafted = read["drafted"]

    def begin_forward(self) -> None:
        super().begin_forward()
        self._key = b""  # the copies change with the drafts


class Drafts(LeaveOneOut):
    """The inputs of the copies, and the drafts for the next forward."""

    forward: DraftedForward

    def prepare(self, plan: Plan, group: Group) -> Plan:
        forward, canvas = self.forward, self.forward.canvas
        count = len(group.want)
        at = group.plan.positions[:count, plan.tokens.shape[1] :]
        filled = torch.where(upload(forward.drafted, at.device) & canvas.open, forward.likely, canvas.tokens)
        inputs = group.of(filled).gather(1, at.clamp(min=0))
        block, width = group.of(canvas.window), group.plan.width
        query = group.plan.want[:count, block.shape[1] :]  # index of the copy that predicts each block position
        itself = (query >= 0) & (block == (block - canvas.shift).clamp(min=0))
        masks = torch.zeros(count, width + 1, dtype=torch.bool, device=at.device)
        masks.scatter_(1, torch.where(itself, query, width), True)
        # Padding, too: at the first position an image has its condition, which is no token.
        inputs = inputs.masked_fill(masks[:, plan.tokens.shape[1] : -1] | (at < 0), canvas.mask_id)
        return replace(plan, tokens=torch.cat([plan.tokens, inputs], 1))

    def complete(self, evidence: Evidence) -> Evidence:
        forward, canvas = self.forward, self.forward.canvas
        ids, probability = evidence.distribution.greedy
        likely = evidence.predicted & (probability > forward.least)
        forward.likely.scatter_(1, evidence.positions, ids)
        drafted = torch.zeros(canvas.tokens.shape, dtype=torch.bool, device=ids.device)
        drafted.scatter_(1, evidence.positions, likely)
        canvas.read_later({"drafted": drafted}, forward.note)
        return super().complete(evidence)


@dataclass(frozen=True)
class DraftedLayout(Layout):
    """Plans with the copies of a `DraftedForward`."""

    forward: DraftedForward | None = None

    def with_leave_one_out(
        self, rows: np.ndarray, positions: np.ndarray, slots: np.ndarray, wanted: np.ndarray, want: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens, copies = self._copies(rows, wanted)
        extra = np.concatenate([tokens, copies], 1)
        own = np.where(extra < 0, -1, self.canvas.length + np.arange(extra.shape[1]))
        used = (extra >= 0).any(0)
        query = positions.shape[1] + np.maximum(used.cumsum() - 1, 0)[self.leave_one_out :]
        return (
            np.concatenate([positions, extra[:, used]], 1),
            np.concatenate([slots, own[:, used]], 1),
            np.concatenate([want, np.where(copies < 0, -1, query)], 1),
        )

    def visible_to_copies(
        self, rows: np.ndarray, positions: np.ndarray, own: np.ndarray, wanted: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        canvas, width, most = self.canvas, positions.shape[1], self.leave_one_out
        slots = np.arange(canvas.length)
        tokens, copies = self._copies(rows, wanted)
        extra = np.concatenate([tokens, copies], 1)
        used = (extra >= 0).any(0)
        visible = np.zeros((len(rows), width + extra.shape[1], canvas.length + extra.shape[1]), dtype=bool)
        visible[..., : canvas.length] = slots < end[:, None, None]
        drafted = (slots == tokens[..., None]).any(1)  # [n, L]
        visible[:, width:, : canvas.length] &= ~drafted[:, None]
        visible[:, width:, canvas.length : canvas.length + most] = (tokens >= 0)[:, None]
        block = canvas.window_host[rows]
        own_slot, target = slots == copies[..., None], slots == block[..., None]  # [n, W, L]
        seen = visible[:, width + most :]
        seen[..., : canvas.length] |= target & drafted[:, None] & (slots < end[:, None, None])
        seen[..., : canvas.length] &= ~own_slot
        replaced = (tokens[:, None] == copies[..., None]) | (tokens[:, None] == block[..., None])
        seen[..., canvas.length : canvas.length + most] &= ~replaced
        seen[..., canvas.length + most :] = np.eye(most, dtype=bool)
        return np.concatenate([visible[:, :width], visible[:, width:][:, used]], 1)

    def _copies(self, rows: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n, W] the positions of token copies, and of the copies that predict each block position; -1: none."""
        assert self.forward is not None, "made for one"
        block, length = self.canvas.window_host[rows], self.canvas.length
        open_ = np.take_along_axis(self.canvas.open_host[rows], block, 1) & (block < length) & (wanted >= 0)
        drafted = np.take_along_axis(self.forward.drafted[rows], block, 1)
        return np.where(open_ & drafted, block, -1), np.where(open_, wanted, -1)
