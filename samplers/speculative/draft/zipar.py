"""Decodes several rows of an image at once: a row begins when the row above it is a few tokens ahead.

ZipAR: Accelerating Auto-regressive Image Generation through Spatial Locality, https://arxiv.org/abs/2412.04062

    each forward samples one token in every row q that has begun;  row q + 1 begins after `window` tokens of row q
    a token attends to all sampled tokens before it in raster order;  the missing end of the row above is masked
    the first token of a row follows its newest neighbour above, which temporarily stands in for that row's last token,
    or the end of that row, where a family writes one: it is known

The loop commits text without gaps, so tokens of later rows remain guesses until the rows before are complete, and are
then accepted untested. Each forward feeds these guesses again, in raster order after the last committed token, so that
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
from pardec.models.images.contracts import ImageLayout
from pardec.models.model import LanguageModel

from ...host_transfer import download, upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from .image_grid import layout_of

_HINT = "text has no rows: draft with lookup or sjd"


@dataclass(slots=True)
class ImageProgress:
    """The images so far, on the host, and the tokens fed in this round."""

    codes: np.ndarray  # [B, cells] int64
    sampled: np.ndarray  # [B, cells] bool
    fed: np.ndarray  # [B, T] each node's cell of the token grid, -1 for padding and before the first


@register("zipar", checked="hand")
class Zipar(Drafter):
    default_acceptance: ClassVar[str | None] = "match"
    requires: ClassVar[Reasons] = {
        Trait.FOLLOWS_PICK: Why(
            "{me} commits tokens that were sampled before the row above was complete",
            "accept with match, or with greedy at temperature 0",
        )
    }

    window: Annotated[int | None, "tokens of a row that are sampled when the next row begins; none: half a row"] = None

    def __post_init__(self) -> None:
        self.require("window", least=1)

    def width(self, model: LanguageModel) -> int:
        lag, layout = self._lag(model), layout_of(model, "zipar", _HINT)
        # The last committed token, tokens of later rows, the stand-in before the newest row, and ends of rows.
        ends = 0 if layout.row_end is None else layout.columns // lag + 1
        return 2 + sum(range(layout.columns - lag, 0, -lag)) + ends + len(layout.closing)

    def _lag(self, model: LanguageModel) -> int:
        wide = layout_of(model, "zipar", _HINT).columns
        if self.window is not None and self.window > wide:
            raise SpecError(
                f"zipar: window={self.window} is more than the {wide} tokens of a row of {model.name}",
                hint=f"window={wide} is sequential decoding, window={max(1, wide // 2)} the default",
            )
        return self.window or max(1, wide // 2)

    def start(self, context: DecodeContext) -> ImageProgress:
        forced = np.tile(layout_of(context.model, "zipar", _HINT).forced().numpy(), (len(context.text), 1))
        return ImageProgress(forced.clip(0), forced >= 0, np.full((len(forced), 1), -1))

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: ImageProgress) -> Draft:
        text, layout = context.text, layout_of(context.model, "zipar", _HINT)
        raster = np.arange(state.sampled.shape[1])
        last = (text.length - text.prompt - 1)[:, None]  # the cell of node 0
        later = state.sampled & (raster > last) & self._due(state, layout, self._lag(context.model))
        stand_in = self._row_start(state, layout, self._lag(context.model))
        # Nodes: the last committed token, later ones in raster order, and the stand-in after them.
        nodes = later | (raster == last) | (raster == stand_in)
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
            upload(tokens, device),
            sizes,
            text.length - 1,
            torch.arange(-1, len(rank) - 1, device=device),
            upload(depth, device),
            levels=int(depth.max()),
            verify=upload(sure, device),
            preaccepted=upload(sure, device),
        )

    def _due(self, state: ImageProgress, layout: ImageLayout, lag: int) -> np.ndarray:
        """[B, cells]: False for forced tokens that are known but not yet due."""
        counts, body = _counts(state, layout), layout.rows * layout.stride
        due = np.ones_like(state.sampled)
        due[:, body:] = counts[:, -1:] == layout.columns
        if layout.row_end is not None:  # the next row begins after it
            due[:, layout.columns : body : layout.stride] = counts >= [*[lag] * (layout.rows - 1), layout.columns]
        return due

    def _row_start(self, state: ImageProgress, layout: ImageLayout, lag: int) -> np.ndarray:
        """[B, 1]: the cell before the row that begins in this round, if that cell is missing yet; else -1."""
        rows = _counts(state, layout)
        fresh = (rows == 0).argmax(1)[:, None]  # the first row without a cell; 0 where there is none
        above = np.take_along_axis(rows, (fresh - 1).clip(0), 1)
        begins = (fresh > 0) & (above >= lag) & (above < layout.columns) & (layout.row_end is None)
        return np.where(begins, fresh * layout.stride - 1, -1)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: ImageProgress) -> None:
        text, pick = context.text, outcome.verdict.pick
        raster = np.arange(state.sampled.shape[1])
        if pick is not None and (state.fed >= 0).any():
            row, node = np.nonzero((state.fed >= 0) & (state.fed + 1 < len(raster)))
            target = state.fed[row, node] + 1
            new = ~state.sampled[row, target]
            row, node, target = row[new], node[new], target[new]
            state.codes[row, target] = download(pick)[row, node]
            state.sampled[row, target] = True
        committed = raster < (text.length - text.prompt)[:, None]
        position = np.minimum(text.prompt[:, None] + raster, text.host.shape[1] - 1)
        state.codes = np.where(committed, np.take_along_axis(text.host, position, 1), state.codes)
        state.sampled |= committed


def _counts(state: ImageProgress, layout: ImageLayout) -> np.ndarray:
    """[B, rows]: how many codes of each row are sampled."""
    body = state.sampled[:, : layout.rows * layout.stride].reshape(-1, layout.rows, layout.stride)
    counts: np.ndarray = body[..., : layout.columns].sum(2)
    return counts
