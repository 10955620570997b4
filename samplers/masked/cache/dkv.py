"""Delayed cache (dKV-Cache-Decode): a token is computed once more after its commit, then its K/V are reused.

dKV-Cache: The Cache for Diffusion Language Models, https://arxiv.org/abs/2505.15781

    changed = committed (or reopened) since the last forward;  rows(X) = the positions whose outputs predict X
    queried = everything in the first `full` steps of a block and every `refresh` steps, otherwise
              rows(open) + changed                       settle=self
              rows(open) + rows(changed) + changed       settle=next: so that the row which predicted it is settled too
              rows(open) + rows(changed) + changed + open                                      settle=both

In families without a shift the three are the same. Open positions are queried in later blocks too, and with a stage
that revises also rows(tokens that forwards committed in the block). The K/V of a mask are replaced at the first forward
after a commit, however many idle steps the schedule leaves out between the two.
`prompt=keep` never queries the prompt again ("PD"), but for its last token in shifted families, which full steps query
as well, since it predicts the first token after it; the published "Prefill" is `prefix` on one block. The published
sets for shifted families ("right", "un", "un_right" of Dream) are those of `reference=true`: "un" keeps the K/V of a
mask under a token whose right neighbour was committed first, and the row's last position for good. Steps count within
the block, idle ones too. `full` defaults to the authors' values: 2 for LLaDA, 1 for Dream.
Exact: no, but for `refresh=1` with `prompt=refresh`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from pardec.models.model import LanguageModel

from ...host_transfer import download
from ...registry import register
from ..contracts import Cache, Canvas, QuerySpec
from .changes import LastTokens, elapsed, rows_predicting


@register("dkv", checked="golden/dream golden/llada reference:reference.naive_caches.dkv")
class DelayedCache(Cache):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"refresh": (8, 4), "prompt": ("refresh", "keep")}

    refresh: Annotated[int, "steps between full forwards: 0 only when a block is entered, 1 always"] = 8
    full: Annotated[
        int | None, "steps at the start of a block that compute everything; none: 2, or 1 in shifted families"
    ] = None
    settle: Annotated[
        Literal["self", "next", "both"],
        "what must be committed before K/V are reused: the token, the one it predicts, or both",
    ] = "self"
    prompt: Annotated[Literal["refresh", "keep"], "whether full forwards compute the prompt again"] = "refresh"
    reference: Annotated[bool, "compute the published sets of positions in shifted families"] = False

    def __post_init__(self) -> None:
        self.require("refresh", least=0)
        self.require("full", least=1)

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 and self.prompt == "refresh" else "relaxed"

    def fit(self, model: LanguageModel) -> DelayedCache:
        return self if self.full is not None else replace(self, full=_full(model.decoding_config.shift))

    def start(self, canvas: Canvas) -> LastTokens:
        return LastTokens(canvas)

    def query(self, canvas: Canvas, state: LastTokens) -> QuerySpec:
        changed = state.changed(canvas)
        at, full = canvas.step - canvas.entry_step, self.full or _full(canvas.shift)
        full_rows = canvas.block_started | (at < full) | elapsed(canvas, self.refresh, canvas.entry_step)
        if full_rows.all() and self.prompt == "refresh":
            return QuerySpec(np.zeros_like(canvas.end), canvas.end)
        positions = np.arange(canvas.length)
        visible = positions < canvas.end[:, None]
        everything = visible
        if self.prompt == "keep":
            everything = visible & (positions >= (canvas.prompt - canvas.shift)[:, None])
        if self.reference and canvas.shift:
            queried = ~self._published(canvas, at) & visible
        else:
            queried = self._unsettled(canvas, changed) & visible
        mask = torch.from_numpy(np.where(full_rows[:, None], everything, queried))
        return QuerySpec(np.zeros_like(canvas.end), canvas.end, mask)

    def _unsettled(self, canvas: Canvas, changed: np.ndarray) -> np.ndarray:
        """[B, L] bool: positions to compute: those that predict open ones, and changed ones by the rule `settle`."""
        open_ = canvas.open_host & (np.arange(canvas.length + 1) < canvas.end[:, None])
        queried: np.ndarray = rows_predicting(open_, canvas.shift) | changed
        if self.settle != "self":
            queried |= rows_predicting(changed, canvas.shift)
        if self.settle == "both":
            queried |= open_
        return queried[:, :-1]

    def _published(self, canvas: Canvas, at: np.ndarray) -> np.ndarray:
        """[B, L] bool: positions that Dream's published loops reuse. `un` wraps round, `un_right` repeats its last."""
        when = download(canvas.commit_step)[:, :-1]
        old = ~canvas.open_host[:, :-1] & (when < canvas.nfe[:, None] - 1)
        positions, last = np.arange(canvas.length), canvas.total[:, None] - 1
        right = np.roll(old, -1, axis=1)
        if self.settle == "next":
            old = np.where(positions == last, old[:, :1], right)
        elif self.settle == "both":
            old = old & right
            old = np.where(positions == last, np.take_along_axis(old, np.maximum(last - 1, 0), 1), old)
        reused: np.ndarray = np.where((at == 1)[:, None], positions < canvas.prompt[:, None] - 1, old)
        return reused


def _full(shift: int) -> int:
    """The published number of full steps at the start: 1 for shifted families (Dream), 2 for others (LLaDA)."""
    return 1 if shift else 2
