"""Max-logit cache (ML-Cache): a forward computes the positions with the lowest maximum logits and reuses the others.

Lumina-DiMOO: An Omni Diffusion Large Language Model for Multi-Modal Generation and Understanding,
https://arxiv.org/abs/2510.06308

    m_j = max over the codes of position j's logits, by the forward that queried it last
    queried = everything in steps 0 .. w of a block and every `refresh` steps after, otherwise
              the floor((1 - reuse) (T - 1)) + 1 positions of the least m_j of all T in the row, the prompt's included

Of other positions K/V are reused and, where they are open, logits too: candidates are drawn from them again. A token
that was committed with a high logit keeps the K/V of the mask before it up to the next refresh. w is 30% of the steps
of a schedule. In models of text m_j is over the whole vocabulary.
The published loop ranks each half of guidance by itself. Here both query the same positions, those of the half with the
condition.
Exact: no, but for `refresh=1`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch

from pardec.models.caches.shares import floor_of_share

from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Cache, Canvas, QuerySpec
from ..ops.schedule import block_share
from .changes import LEAVE_ONE_OUT_REUSED, elapsed

_WARMUP = 0.3  # share of a schedule's steps that are warm-up


@register("mlcache", checked="reference:reference.naive_pictures.picture")
class MaxLogitCache(Cache):
    provides = frozenset({Trait.STORES_KV, Trait.REUSES_PREDICTIONS})
    conflicts: ClassVar[Reasons] = {Trait.LEAVE_ONE_OUT: LEAVE_ONE_OUT_REUSED}
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"reuse": (0.9, 0.7, 0.5)}

    reuse: Annotated[float, "share of positions that a forward between refreshes does not compute"] = 0.9
    refresh: Annotated[int, "steps between full forwards: 0 only when a block is entered, 1 always"] = 5
    warmup: Annotated[int | None, "steps 0 to this one compute everything; none: 30% of the schedule's steps, or 5"] = (
        None
    )

    def __post_init__(self) -> None:
        self.require("reuse", least=0, most=1)
        self.require("refresh", "warmup", least=0)

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 else "relaxed"

    def query(self, canvas: Canvas, state: None) -> QuerySpec:
        at, warmup = canvas.step - canvas.entry_step, self._warmup(canvas)
        full = canvas.block_started | (at <= warmup) | elapsed(canvas, self.refresh, canvas.entry_step + warmup)
        if full.all():
            return QuerySpec(np.zeros_like(canvas.end), canvas.end)
        assert canvas.max_logits is not None, "set by the loop"
        visible = np.arange(canvas.length) < canvas.end[:, None]
        score = np.where(visible, canvas.max_logits(), np.inf)
        count = floor_of_share(1 - self.reuse, np.isfinite(score).sum(1) - 1) + 1
        rank = score.argsort(1, kind="stable").argsort(1, kind="stable")
        mask = np.where(full[:, None], visible, (rank < count[:, None]) & visible)
        return QuerySpec(np.zeros_like(canvas.end), canvas.end, torch.from_numpy(mask))

    def _warmup(self, canvas: Canvas) -> np.ndarray:
        """[B]: the last step of the active block's warm-up."""
        if self.warmup is not None:
            return np.full_like(canvas.step, self.warmup)
        share = np.floor(_WARMUP * block_share(canvas, canvas.total_steps)).astype(np.int64)
        return np.where(canvas.total_steps > 0, share, 5)
