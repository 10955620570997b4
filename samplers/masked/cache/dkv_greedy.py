"""Delayed cache of few tokens (dKV-Cache-Greedy): only what was and will be committed is asked, and its surroundings.

dKV-Cache: The Cache for Diffusion Language Models, https://arxiv.org/abs/2505.15781

    asked = changed since the last forward + coming + the window
    window = for each coming position, in the order of commits: the nearest `window` open positions of the row that are
             neither coming nor in the window yet, the left one first of two at the same distance
    everything when a block is entered and every `refresh` steps of the block

What comes must be known before the forward, so that the select is one that needs none: `fixed` in a random order.
The published rule alternates left and right in words; what its code does is the rule above.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from pardec.models.errors import SpecError

from ...registry import register
from ..contracts import Cache, Canvas, MaskedSampler, QuerySpec
from ._since import Since, elapsed


@register("dkv_greedy", stage="cache", paper="arXiv:2505.15781", checked="golden/llada reference")
@dataclass(frozen=True)
class GreedyDelayedCache(Cache):
    needs_commit_order = True

    refresh: Annotated[int, "ask everything every so many steps of a block: 0 only when it is entered, 1 always"] = 2
    window: Annotated[int, "open positions asked around each coming one"] = 4

    def __post_init__(self) -> None:
        if self.refresh < 0:
            raise SpecError(
                f"dkv_greedy: refresh must be 0 (when a block is entered) or a number of steps, got {self.refresh}"
            )
        if self.window < 0:
            raise SpecError(f"dkv_greedy: window must be at least 0, got {self.window}")

    def check(self, sampler: MaskedSampler) -> None:
        if not sampler.select.knows_order(sampler.propose):
            parts = [part.name for part in sampler.spec.parts]
            raise SpecError(
                f"dkv_greedy must know before a forward what it commits, which {'+'.join(parts)} decides after it",
                hint="use a random order, as in fixed:order=random@dkv_greedy, or the cache dkv",
            )

    def start(self, canvas: Canvas) -> Since:
        return Since.of(canvas)

    def query(self, canvas: Canvas, state: Since) -> QuerySpec:
        changed = state.changed(canvas)
        due = canvas.entered | elapsed(canvas, self.refresh, canvas.entry_step)
        assert canvas.commit_order is not None, "the loop has asked the select"
        coming = canvas.commit_order > 0
        whole = QuerySpec(np.zeros_like(canvas.end), canvas.end, only=coming)
        if due.all():
            return whole
        asked = changed | self._surrounding(canvas, canvas.commit_order.numpy())
        seen = np.arange(canvas.length) < canvas.end[:, None]
        mask = torch.from_numpy(seen & (due[:, None] | asked[:, :-1]))
        return QuerySpec(whole.start, whole.stop, mask, only=coming)

    def _surrounding(self, canvas: Canvas, rank: np.ndarray) -> np.ndarray:
        """[B, L + 1] bool: what is coming and its window."""
        places = np.arange(canvas.length + 1)
        taken = np.zeros(canvas.open_host.shape, dtype=bool)
        row, column = np.nonzero(rank)
        taken[row, canvas.window_host[row, column]] = True
        if not self.window:
            return taken
        free = canvas.open_host & (places < canvas.end[:, None]) & ~taken
        for number in range(1, int(rank.max(initial=0)) + 1):  # each takes what the ones before it have left
            found = rank == number
            at = np.take_along_axis(canvas.window_host, found.argmax(1)[:, None], 1)
            distance = np.where(free & found.any(1)[:, None], 2 * abs(places - at) + (places > at), _FAR)
            nearest = np.argsort(distance, axis=1, kind="stable")[:, : self.window]
            near = np.zeros_like(free)
            np.put_along_axis(near, nearest, np.take_along_axis(distance, nearest, 1) < _FAR, 1)
            free &= ~near
            taken |= near
        return taken


_FAR = np.iinfo(np.int64).max
