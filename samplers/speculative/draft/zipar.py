"""Decodes several rows of a picture at once: the next row begins when a few cells of the one above it are there.

ZipAR: Accelerating Auto-regressive Image Generation through Spatial Locality, https://arxiv.org/abs/2412.04062

    each forward says one cell in every row q that has begun;  row q + 1 begins behind the first `window` cells of row q
    a cell sees all cells before it, row by row, that have been said;  the missing end of the row above stays hidden
    the first cell of a row follows its newest neighbour above, put in the place of that row's last cell for the moment

The loop commits text without gaps, so that cells of later rows stay guesses until the rows before are full, and the
acceptance then takes them as they are. Each forward is fed these guesses again, in the order of the picture, behind the
last committed cell: that is the mask which hides what is missing, and their K/V see the cells that have come since.

Deviates from the authors' code, which feeds a cell once and keeps K/V that saw less; forwards are as many. Their
adaptive window, which tests the first cell of a row against a later law, is not built.
Exact: no, and no bound is known: a cell is drawn without those to the right of it above. With a window of a whole row
it is sequential decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Outcome, SpeculativeSampler, Uniforms
from ._grid import columns


@dataclass(slots=True)
class Board:
    """The pictures so far, on the host, and what the round under way feeds of them."""

    codes: np.ndarray  # [B, cells] int64
    predicted: np.ndarray  # [B, cells] bool
    fed: np.ndarray  # [B, T] the cell that each node stands on, -1 is padding and what is before the first


@register("zipar", stage="draft", paper="arXiv:2412.04062", checked="hand")
@dataclass(frozen=True)
class Zipar(Drafter):
    default_acceptance: ClassVar[str | None] = "match"

    window: Annotated[int | None, "cells of a row that are there when the next one begins; none: half a row"] = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise SpecError(f"zipar: window must be at least 1, got {self.window}")

    def check(self, sampler: SpeculativeSampler) -> None:
        if not sampler.accept.follows_pick:
            raise SpecError(
                "zipar commits cells that were drawn before the row above them was full",
                hint="accept with match, or with greedy at temperature 0",
            )

    def width(self, model: LanguageModel) -> int:
        lag, wide = self._lag(model), columns(model, "zipar", "text has no rows: lookup and sjd draft it")
        # Behind the last committed cell: what later rows can have, and the stand-in before the newest one.
        return 2 + sum(range(wide - lag, 0, -lag))

    def _lag(self, model: LanguageModel) -> int:
        wide = columns(model, "zipar", "text has no rows: lookup and sjd draft it")
        if model.imaging is not None and model.imaging.layout.row_end is not None:
            raise SpecError(f"zipar knows no end-of-row tokens, which {model.name} has", hint="draft with sjd")
        if self.window is not None and self.window > wide:
            raise SpecError(
                f"zipar: window={self.window} is more than the {wide} cells of a row of {model.name}",
                hint=f"window={wide} is sequential decoding, window={max(1, wide // 2)} the default",
            )
        return self.window or max(1, wide // 2)

    def start(self, context: DecodeContext) -> Board:
        cells = int((context.text.limit - context.text.prompt).max())
        shape = (len(context.text), cells)
        return Board(np.zeros(shape, np.int64), np.zeros(shape, bool), np.full((len(context.text), 1), -1))

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Board) -> Draft:
        text, wide = context.text, columns(context.model, "zipar", "")
        cells = np.arange(state.predicted.shape[1])
        last = (text.length - text.prompt - 1)[:, None]  # the cell of node 0
        later = state.predicted & (cells > last)
        stand_in = self._begun(state, wide, self._lag(context.model), last)
        # Nodes: the last committed cell, later ones in their order, and the stand-in, which is behind all of them.
        nodes = later | (cells == last) | (cells == stand_in)
        sizes = nodes.sum(1)
        order = np.argsort(~nodes, axis=1, kind="stable")[:, : int(sizes.max())]
        rank = np.arange(order.shape[1])
        state.fed = np.where(rank < sizes[:, None], order, -1)
        depth = np.where(state.fed < 0, rank, state.fed - last)
        copied = (state.fed == stand_in) & (rank > 0)
        source = np.where(copied, np.roll(state.fed, 1, axis=1), state.fed).clip(0)
        tokens = np.take_along_axis(state.codes, source, 1)
        sure = (rank > 0) & (state.fed >= 0) & (depth == rank) & ~copied  # nothing is missing before them
        device = text.device
        return Draft(
            torch.from_numpy(tokens).to(device),
            sizes,
            text.length - 1,
            torch.arange(-1, len(rank) - 1, device=device),
            torch.from_numpy(depth).to(device),
            levels=int(depth.max()),
            verify=torch.from_numpy(sure).to(device),
            sure=torch.from_numpy(sure).to(device),
        )

    def _begun(self, state: Board, wide: int, lag: int, last: np.ndarray) -> np.ndarray:
        """[B, 1]: the cell before the row that begins in this round, if that cell is missing yet; else -1."""
        rows = state.predicted.reshape(len(state.predicted), -1, wide).sum(2)
        fresh = (rows == 0).argmax(1)[:, None]  # the first row without a cell; 0 where there is none
        above = np.take_along_axis(rows, (fresh - 1).clip(0), 1)
        begins = (fresh > 0) & (above >= lag) & (above < wide)
        return np.where(begins, fresh * wide - 1, -1)

    def observe(self, outcome: Outcome, context: DecodeContext, state: Board) -> None:
        text, pick = context.text, outcome.verdict.pick
        cells = np.arange(state.predicted.shape[1])
        if pick is not None and (state.fed >= 0).any():
            row, node = np.nonzero((state.fed >= 0) & (state.fed + 1 < len(cells)))
            cell = state.fed[row, node] + 1
            new = ~state.predicted[row, cell]
            row, node, cell = row[new], node[new], cell[new]
            state.codes[row, cell] = pick.cpu().numpy()[row, node]
            state.predicted[row, cell] = True
        done = cells < (text.length - text.prompt)[:, None]
        place = np.minimum(text.prompt[:, None] + cells, text.host.shape[1] - 1)
        state.codes = np.where(done, np.take_along_axis(text.host, place, 1), state.codes)
        state.predicted |= done
