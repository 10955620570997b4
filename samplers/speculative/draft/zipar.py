"""Decodes several rows of an image at once: a row begins when the row above it is a few tokens ahead.

ZipAR: Accelerating Auto-regressive Image Generation through Spatial Locality, https://arxiv.org/abs/2412.04062

    each forward samples one token in every row q that has begun;  row q + 1 begins behind `window` tokens of row q
    a token attends to all sampled tokens before it in raster order;  the missing end of the row above is masked
    the first token of a row follows its newest neighbour above, which temporarily stands in for that row's last token

The loop commits text without gaps, so tokens of later rows remain guesses until the rows before are complete, and are
then accepted untested. Each forward feeds these guesses again, in raster order behind the last committed token, so that
missing tokens are masked and the K/V include the tokens sampled since.

Deviates from the authors' code, which feeds each token once and keeps K/V with less context; the number of forwards is
the same. Their adaptive window, which tests the first token of a row against a later distribution, is not implemented.
Exact: no, and no bound is known: a token is sampled without those above it to the right. With a window of a whole row
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
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, SpeculativeSampler, Uniforms
from ._grid import columns


@dataclass(slots=True)
class ImageProgress:
    """The images so far, on the host, and the tokens fed in this round."""

    codes: np.ndarray  # [B, cells] int64
    sampled: np.ndarray  # [B, cells] bool
    fed: np.ndarray  # [B, T] each node's cell of the token grid, -1 for padding and before the first


@register("zipar", stage="draft", paper="arXiv:2412.04062", checked="hand")
@dataclass(frozen=True)
class Zipar(Drafter):
    default_acceptance: ClassVar[str | None] = "match"

    window: Annotated[int | None, "tokens of a row that are sampled when the next row begins; none: half a row"] = None

    def __post_init__(self) -> None:
        self.require("window", least=1)

    def check(self, sampler: SpeculativeSampler) -> None:
        if not sampler.accept.follows_pick:
            raise SpecError(
                "zipar commits tokens that were sampled before the row above was complete",
                hint="accept with match, or with greedy at temperature 0",
            )

    def width(self, model: LanguageModel) -> int:
        lag, wide = self._lag(model), columns(model, "zipar", "text has no rows: draft with lookup or sjd")
        # Behind the last committed token: those of later rows, and the stand-in before the newest row.
        return 2 + sum(range(wide - lag, 0, -lag))

    def _lag(self, model: LanguageModel) -> int:
        wide = columns(model, "zipar", "text has no rows: draft with lookup or sjd")
        if model.imaging is not None and model.imaging.layout.row_end is not None:
            raise SpecError(f"zipar does not support end-of-row tokens, which {model.name} has", hint="draft with sjd")
        if self.window is not None and self.window > wide:
            raise SpecError(
                f"zipar: window={self.window} is more than the {wide} tokens of a row of {model.name}",
                hint=f"window={wide} is sequential decoding, window={max(1, wide // 2)} the default",
            )
        return self.window or max(1, wide // 2)

    def start(self, context: DecodeContext) -> ImageProgress:
        cells = int((context.text.limit - context.text.prompt).max())
        shape = (len(context.text), cells)
        return ImageProgress(np.zeros(shape, np.int64), np.zeros(shape, bool), np.full((len(context.text), 1), -1))

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: ImageProgress) -> Draft:
        text, wide = context.text, columns(context.model, "zipar", "")
        cells = np.arange(state.sampled.shape[1])
        last = (text.length - text.prompt - 1)[:, None]  # the cell of node 0
        later = state.sampled & (cells > last)
        stand_in = self._row_start(state, wide, self._lag(context.model), last)
        # Nodes: the last committed token, later ones in raster order, and the stand-in behind them.
        nodes = later | (cells == last) | (cells == stand_in)
        sizes = nodes.sum(1)
        order = np.argsort(~nodes, axis=1, kind="stable")[:, : int(sizes.max())]
        rank = np.arange(order.shape[1])
        state.fed = np.where(rank < sizes[:, None], order, -1)
        depth = np.where(state.fed < 0, rank, state.fed - last)
        copied = (state.fed == stand_in) & (rank > 0)
        source = np.where(copied, np.roll(state.fed, 1, axis=1), state.fed).clip(0)
        tokens = np.take_along_axis(state.codes, source, 1)
        sure = (rank > 0) & (state.fed >= 0) & (depth == rank) & ~copied  # no token is missing before them
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

    def _row_start(self, state: ImageProgress, wide: int, lag: int, last: np.ndarray) -> np.ndarray:
        """[B, 1]: the cell before the row that begins in this round, if that cell is missing yet; else -1."""
        rows = state.sampled.reshape(len(state.sampled), -1, wide).sum(2)
        fresh = (rows == 0).argmax(1)[:, None]  # the first row without a cell; 0 where there is none
        above = np.take_along_axis(rows, (fresh - 1).clip(0), 1)
        begins = (fresh > 0) & (above >= lag) & (above < wide)
        return np.where(begins, fresh * wide - 1, -1)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: ImageProgress) -> None:
        text, pick = context.text, outcome.verdict.pick
        cells = np.arange(state.sampled.shape[1])
        if pick is not None and (state.fed >= 0).any():
            row, node = np.nonzero((state.fed >= 0) & (state.fed + 1 < len(cells)))
            cell = state.fed[row, node] + 1
            new = ~state.sampled[row, cell]
            row, node, cell = row[new], node[new], cell[new]
            state.codes[row, cell] = pick.cpu().numpy()[row, node]
            state.sampled[row, cell] = True
        committed = cells < (text.length - text.prompt)[:, None]
        position = np.minimum(text.prompt[:, None] + cells, text.host.shape[1] - 1)
        state.codes = np.where(committed, np.take_along_axis(text.host, position, 1), state.codes)
        state.sampled |= committed
