"""Which positions a step queries: those of the cache, and those whose outputs predict the wanted ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..prefix_reuse import PrefixReuse
from .canvas import Canvas
from .evidence import QuerySpec
from .layout import Queries
from .visible import VisiblePositions


@dataclass(frozen=True)
class Selection:
    """Turns a `QuerySpec` into queries.

    Attributes:
        reuse: the prefixes of rows whose K/V are there before their first forward.
        visible: where a query stage leaves positions out, those that are left.
        every: committed positions of the block are predicted too.
        stored: what earlier forwards predict is at hand, so that no position has to be queried for that.
    """

    canvas: Canvas
    reuse: PrefixReuse
    visible: VisiblePositions | None
    every: bool
    stored: bool

    def wanted(self, query: QuerySpec) -> np.ndarray:
        """[B, W] bool: the positions of the active block that are to be predicted."""
        canvas = self.canvas
        only = None if query.only is None else query.only.cpu().numpy()
        if not self.every:
            return canvas.eligible_host if only is None else canvas.eligible_host & only
        if only is None:
            return canvas.active_host
        # A revise stage reads committed positions too. A `shifted` forward computes the tokens before the block alone:
        # it predicts the block's first token, and nothing in the block is committed yet.
        committed = ~canvas.eligible_host if query.shifted is None else ~(canvas.eligible_host | query.shifted[:, None])
        wanted: np.ndarray = canvas.active_host & (only | committed)
        return wanted

    def queries(self, query: QuerySpec) -> Queries:
        """The positions of `query`, and those whose outputs predict the wanted ones.

        The first forward of a row is full, but for a prefix that it reuses. In a shifted family position p is predicted
        by the output of p - 1, so that the position before the block is queried too, as long as the block's first one
        is open. What is not visible is never queried.
        """
        canvas = self.canvas
        new = canvas.nfe == 0
        shift = np.full(len(canvas), canvas.shift)
        if query.shifted is not None:
            shift = np.where(query.shifted, 1, shift)
        for index in np.flatnonzero(new).tolist():
            self.reuse.begin(index, canvas.tokens_host[index], int(canvas.lo[index] - shift[index]))
        first_start = self.reuse.length.copy()
        order = np.arange(canvas.length)
        if self.visible is not None:  # in a family that reuses no prefixes
            mask = (order >= query.start[:, None]) & (order < query.stop[:, None])
            if query.mask is not None:
                mask = query.mask[:, : canvas.length].cpu().numpy()
            return self._of_mask(self.visible.queried(mask, new), query, shift, self.visible)
        if new.all():
            return Queries(canvas.rows, first_start, canvas.end, shift)
        if query.mask is None:
            first = canvas.lo if self.every else canvas.first_open
            start = np.minimum(query.start, np.maximum(first - shift, 0))
            stop = np.maximum(query.stop, canvas.hi - shift)
            if new.any():
                start, stop = np.where(new, first_start, start), np.where(new, canvas.end, stop)
            return Queries(canvas.rows, start, stop, shift)
        mask = query.mask[:, : canvas.length].cpu().numpy().copy()
        if new.any():
            mask = np.where(new[:, None], (order >= first_start[:, None]) & (order < canvas.end[:, None]), mask)
        return self._of_mask(mask, query, shift)

    def _of_mask(
        self, mask: np.ndarray, query: QuerySpec, shift: np.ndarray, visible: VisiblePositions | None = None
    ) -> Queries:
        """The queries of `mask` [B, L], to which it adds those that predict the wanted positions of the block."""
        canvas = self.canvas
        if not self.stored:
            row, column = np.nonzero(self.wanted(query))
            mask[row, np.maximum(canvas.window_host[row, column] - shift[row], 0)] = True
        count = mask.sum(1)
        positions = np.argsort(~mask, axis=1, kind="stable")[:, : count.max()]
        positions = np.where(np.arange(count.max()) < count[:, None], positions, -1)
        queries = Queries(canvas.rows, np.zeros_like(count), count, shift, positions)
        if visible is not None:
            queries = replace(queries, slots=visible.slots, counts=visible.counts)
        if query.similar is not None:
            similar = query.similar & (canvas.nfe > 0)
            if visible is not None:  # what layers keep belongs to a slot
                similar = similar & ~visible.moved.any(1)
            queries = replace(queries, similar=similar)
        return queries
