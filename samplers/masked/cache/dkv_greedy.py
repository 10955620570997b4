"""Delayed cache of few tokens (dKV-Cache-Greedy): computes the last and next commits and a window around them.

dKV-Cache: The Cache for Diffusion Language Models, https://arxiv.org/abs/2505.15781

    queried = changed since the last forward + coming + the window
    window = for each coming position, in the order of commits: the nearest `window` open positions of the row that are
             neither coming nor in the window yet, the left one first of two at the same distance
    everything when a block is entered and every `refresh` steps of the block

The coming positions must be known before the forward, which `fixed` in a random order provides. The paper describes an
alternation of left and right; its code follows the rule above.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Cache, Canvas, QuerySpec
from .changes import LastTokens, elapsed


@register("dkv_greedy", checked="golden/llada reference:reference.naive_caches.dkv_greedy")
class GreedyDelayedCache(Cache):
    requires: ClassVar[Reasons] = {
        Trait.KNOWN_ORDER: Why(
            "{me} must know before a forward what it commits, which {other} decides after it",
            "use a random order, as in fixed:order=random@dkv_greedy, or the cache dkv",
        )
    }

    refresh: Annotated[int, "steps of a block between full forwards: 0 only when it is entered, 1 always"] = 2
    window: Annotated[int, "open positions computed around each position that is committed next"] = 4

    def __post_init__(self) -> None:
        self.require("refresh", "window", least=0)

    def start(self, canvas: Canvas) -> LastTokens:
        return LastTokens(canvas)

    def query(self, canvas: Canvas, state: LastTokens) -> QuerySpec:
        changed = state.changed(canvas)
        full_rows = canvas.block_started | elapsed(canvas, self.refresh, canvas.entry_step)
        assert canvas.commit_order is not None, "set by the loop"
        coming = canvas.commit_order > 0
        whole = QuerySpec(np.zeros_like(canvas.end), canvas.end, only=coming)
        if full_rows.all():
            return whole
        queried = changed | self._surrounding(canvas, canvas.commit_order.numpy())
        visible = np.arange(canvas.length) < canvas.end[:, None]
        mask = torch.from_numpy(visible & (full_rows[:, None] | queried[:, :-1]))
        return QuerySpec(whole.start, whole.stop, mask, only=coming)

    def _surrounding(self, canvas: Canvas, rank: np.ndarray) -> np.ndarray:
        """[B, L + 1] bool: the next positions to commit and the windows around them."""
        positions = np.arange(canvas.length + 1)
        queried = np.zeros(canvas.open_host.shape, dtype=bool)
        row, column = np.nonzero(rank)
        queried[row, canvas.window_host[row, column]] = True
        if not self.window:
            return queried
        free = canvas.open_host & (positions < canvas.end[:, None]) & ~queried
        for number in range(1, int(rank.max(initial=0)) + 1):  # each window takes masks that no earlier one took
            centre = rank == number
            at = np.take_along_axis(canvas.window_host, centre.argmax(1)[:, None], 1)
            distance = np.where(free & centre.any(1)[:, None], 2 * abs(positions - at) + (positions > at), _FAR)
            nearest = np.argsort(distance, axis=1, kind="stable")[:, : self.window]
            near = np.zeros_like(free)
            np.put_along_axis(near, nearest, np.take_along_axis(distance, nearest, 1) < _FAR, 1)
            free &= ~near
            queried |= near
        return queried


_FAR = np.iinfo(np.int64).max
