"""The last state of every position, from which predictions are read where a forward does not query it.

The head is a function of a position's last state, so that a state stands for all logits of the position, at a fraction
of their memory: those of both halves of guidance, before they are mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pardec.models.hidden import Hidden, IdSubset
from pardec.models.images.conditioned import Shifted
from pardec.models.model import LanguageModel

from ..ops.chunked_distribution import CHUNK_BYTES
from ..ops.distribution import split
from .canvas import Canvas
from .layout import Group


class LastStates:
    """The last state of every position of the live rows; column L is a bin."""

    def __init__(self, model: LanguageModel, canvas: Canvas) -> None:
        self.canvas, self.shift, self.vocab = canvas, model.decoding_config.shift, model.vocab_size
        imaging = model.imaging
        # Of an image model the codes alone count, as in the published loop; they stand at every position.
        self.ids = None if imaging is None or imaging.layout.ids is None else imaging.layout.ids.to(model.device)
        self.states: Tensor | None = None  # [copies, B, L + 1, E]
        self.head: Callable[[Tensor], Tensor] | None = None  # [N, E] -> [N, V]
        self.subset: IdSubset | None = None
        self.highest = np.zeros(canvas.tokens.shape, dtype=np.float32)  # [B, L + 1]
        self.stale = np.zeros(canvas.tokens.shape, dtype=bool)  # where `highest` is that of an earlier state
        self.first = np.zeros(len(canvas), dtype=np.int64)  # [B] where the half with the condition begins

    def keep(self, rows: np.ndarray) -> None:
        """Keeps these live rows."""
        if self.states is not None:
            self.states = self.states[:, torch.from_numpy(rows).to(self.states.device)]
        self.highest, self.stale, self.first = self.highest[rows], self.stale[rows], self.first[rows]

    def put(self) -> None:
        """Makes room for rows that no forward has seen, and for the columns that the canvas has grown by.

        Their first forward queries all of them.
        """
        more = self.canvas.tokens.shape[1] - self.stale.shape[1]
        if more:
            self.highest, self.stale = (np.pad(each, ((0, 0), (0, more))) for each in (self.highest, self.stale))
            if self.states is not None:
                self.states = torch.nn.functional.pad(self.states, (0, 0, 0, more))

    def want(self, group: Group) -> Tensor:
        """[n, W] the position of each prediction of the block, -1 outside of it."""
        window = self.canvas.window if group.rows is None else self.canvas.window[self._rows(group)]
        at = (window - self.shift).clamp(min=0)
        return torch.where(window < self.canvas.length, at, -1)

    def renew(self, hidden: Hidden, group: Group) -> Hidden:
        """Stores the states of a forward; the same forward as if it had queried every position."""
        raw = hidden.hidden if isinstance(hidden, Shifted) else hidden
        count, (_, queries, width) = len(group.want), raw.states.shape
        fresh = raw.states.view(-1, count, queries, width)
        copies, length = len(fresh), self.canvas.length
        if self.states is None:
            self.states = fresh.new_zeros(copies, len(self.canvas), length + 1, width)
        self.head, self.subset = raw.head, raw.subset
        rows, positions = self._rows(group), group.plan.positions[:count]
        at = torch.where(positions < 0, length, positions)
        self.states[:, rows[:, None], at] = fresh
        self.stale[rows.cpu().numpy()[:, None], at.cpu().numpy()] = True
        states = self.states[:, rows, :length].flatten(0, 1)
        order = torch.arange(length, device=states.device).expand(count, length)
        shifts = hidden.shifts if isinstance(hidden, Shifted) else [torch.zeros_like(rows)] * copies
        self.first[rows.cpu().numpy()] = -shifts[0].cpu().numpy()
        # Before the first slot of a shorter half nothing stands.
        own = torch.cat([(order + by[:, None]).clamp(min=-1) for by in shifts])
        whole = replace(raw, plan=replace(raw.plan, positions=own, slots=own, span=None), states=states)
        if not isinstance(hidden, Shifted):
            return whole
        plan = replace(hidden.plan, positions=order, slots=order, span=None)
        return replace(hidden, plan=plan, states=states, hidden=whole)

    def max_logits(self) -> np.ndarray:
        """[B, L] the highest logit of each position when it was queried last, of the half with its condition.

        It is infinite where that half has no token: before a condition shorter than the one of the other half.
        """
        assert self.states is not None, "after a forward"
        assert self.head is not None
        self.stale[:, -1] = False
        row, position = self.stale.nonzero()
        for part in split(np.arange(len(row)), CHUNK_BYTES // (4 * self.vocab)):
            logits = self.head(self.states[0, torch.from_numpy(row[part]), torch.from_numpy(position[part])])
            if self.subset is not None:
                logits = self.subset.spread(logits)
            if self.ids is not None:
                logits = logits[:, self.ids]
            elif self.canvas.mask_id < self.vocab:
                logits[:, self.canvas.mask_id] = -torch.inf
            self.highest[row[part], position[part]] = logits.amax(1).float().cpu().numpy()
        self.stale[:] = False
        return np.where(np.arange(self.canvas.length) < self.first[:, None], np.inf, self.highest[:, :-1])

    def _rows(self, group: Group) -> Tensor:
        """[n] the live rows of a group."""
        rows = np.arange(len(self.canvas)) if group.rows is None else group.rows
        return torch.from_numpy(rows).to(self.canvas.tokens.device)
