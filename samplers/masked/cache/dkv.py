"""Delayed cache (dKV-Cache-Decode): a token is asked once more after its commit, then its K/V are reused.

dKV-Cache: The Cache for Diffusion Language Models, https://arxiv.org/abs/2505.15781

    changed = committed (or taken back) since the last forward;  rows(X) = the positions whose outputs predict X
    asked   = everything in the first `full` steps of a block and every `refresh` steps, otherwise
              rows(open) + changed                       settle=self
              rows(open) + rows(changed) + changed       settle=next: so that the row which predicted it is settled too
              rows(open) + rows(changed) + changed + open                                      settle=both

Where rows are not shifted the three are one. Open positions are asked in later blocks too. The K/V of a mask are
replaced at the first forward after a commit, however many idle steps the schedule leaves out between the two.
`prompt=keep` never asks the prompt again ("PD"); the published "Prefill" is `prefix` on one block.
The published sets for shifted families ("right", "un", "un_right" of Dream) are those of `reference=true`: "un" keeps
the K/V of a mask under a token whose right neighbour was committed first, and the row's last position for good.
Steps count within the block, idle ones too. `full` is what each family's authors' code has: 2 of LLaDA, 1 of Dream.
Exact: no, but for `refresh=1` with `prompt=refresh`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...registry import register
from ..contracts import Cache, Canvas, QuerySpec
from ._since import Since, elapsed


@register("dkv", stage="cache", paper="arXiv:2505.15781", checked="golden/dream golden/llada reference")
@dataclass(frozen=True)
class DelayedCache(Cache):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"refresh": (8, 4), "prompt": ("refresh", "keep")}

    refresh: Annotated[int, "ask everything every so many steps: 0 only when a block is entered, 1 always"] = 8
    full: Annotated[
        int | None, "steps at the start of a block that ask everything; none: 2, or 1 where rows are shifted"
    ] = None
    settle: Annotated[
        Literal["self", "next", "both"], "what must be settled: a token, the one it predicts, or both"
    ] = "self"
    prompt: Annotated[Literal["refresh", "keep"], "whether the prompt is asked again with everything"] = "refresh"
    reference: Annotated[bool, "the published sets in shifted families"] = False

    def __post_init__(self) -> None:
        if self.refresh < 0:
            raise SpecError(
                f"dkv: refresh must be 0 (when a block is entered) or a number of steps, got {self.refresh}"
            )
        if self.full is not None and self.full < 1:
            raise SpecError(f"dkv: full must be at least 1, got {self.full}")

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 and self.prompt == "refresh" else "relaxed"

    def fit(self, model: LanguageModel) -> DelayedCache:
        return self if self.full is not None else replace(self, full=_full(model.decoding_config.shift))

    def start(self, canvas: Canvas) -> Since:
        return Since.of(canvas)

    def query(self, canvas: Canvas, state: Since) -> QuerySpec:
        changed = state.changed(canvas)
        at, full = canvas.step - canvas.entry_step, self.full or _full(canvas.shift)
        due = canvas.entered | (at < full) | elapsed(canvas, self.refresh, canvas.entry_step)
        if due.all() and self.prompt == "refresh":
            return QuerySpec(np.zeros_like(canvas.end), canvas.end)
        places = np.arange(canvas.length)
        seen = places < canvas.end[:, None]
        everything = seen
        if self.prompt == "keep":
            everything = seen & (places >= (canvas.prompt - canvas.shift)[:, None])
        if self.reference and canvas.shift:
            asked = ~self._published(canvas, at) & seen
        else:
            asked = self._unsettled(canvas, changed) & seen
        mask = torch.from_numpy(np.where(due[:, None], everything, asked))
        return QuerySpec(np.zeros_like(canvas.end), canvas.end, mask)

    def _unsettled(self, canvas: Canvas, changed: np.ndarray) -> np.ndarray:
        """[B, L] bool."""
        still = canvas.open_host & (np.arange(canvas.length + 1) < canvas.end[:, None])
        asked: np.ndarray = _rows(still, canvas.shift) | changed
        if self.settle != "self":
            asked |= _rows(changed, canvas.shift)
        if self.settle == "both":
            asked |= still
        return asked[:, :-1]

    def _published(self, canvas: Canvas, at: np.ndarray) -> np.ndarray:
        """[B, L] bool: what Dream's loops reuse. `un` wraps round the row's end, `un_right` repeats what it found."""
        when = canvas.commit_step.cpu().numpy()[:, :-1]
        done = ~canvas.open_host[:, :-1] & (when < canvas.nfe[:, None] - 1)
        places, last = np.arange(canvas.length), canvas.total[:, None] - 1
        right = np.roll(done, -1, axis=1)
        if self.settle == "next":
            done = np.where(places == last, done[:, :1], right)
        elif self.settle == "both":
            done = done & right
            done = np.where(places == last, np.take_along_axis(done, np.maximum(last - 1, 0), 1), done)
        reused: np.ndarray = np.where((at == 1)[:, None], places < canvas.prompt[:, None] - 1, done)
        return reused


def _full(shift: int) -> int:
    """The published number of leading full steps: the family that is shifted is Dream's."""
    return 1 if shift else 2


def _rows(places: np.ndarray, shift: int) -> np.ndarray:
    """[B, L + 1] bool: the positions whose outputs predict these."""
    if not shift:
        return places.copy()
    rows = np.roll(places, -1, axis=1)
    rows[:, -1] = False
    rows[:, 0] |= places[:, 0]
    return rows
