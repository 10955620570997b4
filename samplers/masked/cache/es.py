"""Early skipping: of the block, only the most important positions go on to the later layers.

ES-dLLM: Efficient Inference for Diffusion Large Language Models by Early-Skipping, https://arxiv.org/abs/2603.10088

    importance = alpha c + (1 - alpha) d
    c = the position's last confidence, 0 once it is committed;  d = mean |h - h'| / (|h'| / sqrt(E)), divided by its
    largest value in the row where that exceeds 1;  h = its states after a layer, h' the last ones that went on there

After the first layer at depth `depth1`, the share `share1` of the block with the greatest importance goes on, and from
`depth2` on the share `share2`. The first open position, those committed or reopened by the last step and the two most
confident ones do whatever the share; the second of these two only where one of them is the first. The others keep their
K, V and predictions. The whole block is computed every `block_refresh` steps, and everything when a block is entered
and every `refresh` steps; both count the steps of a row through all its blocks. In a shifted family c is that of the
position which the output predicts. A trace shows the positions that the first layer computes.

Deviates from the authors' code: there `refresh` alone computes everything, with the block's length as its default, only
positions that went on may be committed, and a forward begins at the first open position.
Exact: no, but for `refresh=1`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from torch.nn.functional import pad

from pardec.models.caches.shares import ceil_of_share
from pardec.models.caches.skip_cache import EarlySkip
from pardec.models.plan import Ranking

from ...batching import RowState
from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Cache, Canvas, Evidence, QuerySpec
from .changes import LEAVE_ONE_OUT_REUSED, SOME_COMPUTED, LastTokens, elapsed, rows_predicting

_FIRST, _CHANGED, _SUREST = 5.0, 3.0, 2.0  # added to the importance, which is at most 1


class State(RowState):
    """Last confidences [B, L + 1] float32, and the tokens of the last forward."""

    per_row = ("confidence", "tokens")

    def __init__(self, canvas: Canvas) -> None:
        self.confidence = torch.zeros(canvas.tokens.shape, device=canvas.tokens.device)
        self.tokens = LastTokens(canvas)


@register("es", checked="reference:reference.naive_es.decode")
class EarlySkipping(Cache):
    attention = "bidirectional"
    conflicts: ClassVar[Reasons] = {
        Trait.LEAVE_ONE_OUT: LEAVE_ONE_OUT_REUSED,
        Trait.READS_ATTENTION: SOME_COMPUTED,
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"share2": (0.25, 0.5), "block_refresh": (4, 16)}

    share1: Annotated[float, "share of the block that goes on after the layer at depth1"] = 0.5
    share2: Annotated[float, "share of the block that goes on after the layer at depth2"] = 0.25
    depth1: Annotated[float, "depth of the first such layer, from 0 (first layer) to 1 (last)"] = 0.125
    depth2: Annotated[float, "depth of the second such layer"] = 0.25
    alpha: Annotated[float, "weight of the confidence in the importance; the change has the rest"] = 0.5
    block_refresh: Annotated[int, "steps between forwards that compute all of the block: 0 never, 1 always"] = 4
    refresh: Annotated[int, "steps between full forwards: 0 only when a block is entered, 1 always"] = 64

    def __post_init__(self) -> None:
        self.require("share1", "share2", "depth1", "depth2", "alpha", least=0, most=1)
        self.require("block_refresh", "refresh", least=0)

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 else "relaxed"

    def layer_reuse(self, layers: int) -> EarlySkip:
        steps: dict[int, float] = {}
        for depth, share in self._steps():
            layer = int(ceil_of_share(depth, layers))
            steps[layer] = min(share, steps.get(layer, 1.0))
        return EarlySkip(tuple(sorted(steps.items())), 1 - self.alpha)

    def start(self, canvas: Canvas) -> State:
        return State(canvas)

    def observe(self, evidence: Evidence, canvas: Canvas, state: State) -> None:
        before = state.confidence.gather(1, evidence.positions)
        confidence = torch.where(evidence.predicted, evidence.distribution.greedy[1], before)
        state.confidence.scatter_(1, evidence.positions, confidence)

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        changed, order = state.tokens.changed(canvas)[:, :-1], np.arange(canvas.length)
        full = canvas.block_started | elapsed(canvas, self.refresh)
        start, stop = np.where(full, 0, canvas.block_start), np.where(full, canvas.end, canvas.block_end)
        mask = torch.from_numpy((order >= start[:, None]) & (order < stop[:, None]) | changed)
        similar = ~full & ~elapsed(canvas, self.block_refresh)
        ranking = self._ranking(canvas, state, changed) if similar.any() else None
        return QuerySpec(start, stop, mask, similar=similar, ranking=ranking)

    def _ranking(self, canvas: Canvas, state: State, changed: np.ndarray) -> Ranking:
        """The importance of each output, without the change of its states; `changed` [B, L] bool."""
        order, device = np.arange(canvas.length), canvas.tokens.device
        inside = (order >= canvas.block_start[:, None]) & (order < canvas.block_end[:, None])
        first = rows_predicting(order == canvas.first_open[:, None], canvas.shift)
        least = changed.sum(1) + 2
        always = upload(np.where(first, _FIRST, np.where(changed, _CHANGED, 0)).astype(np.float32), device)
        open_ = upload(rows_predicting(canvas.open_host[:, :-1] & inside, canvas.shift), device)
        confidence = pad(state.confidence[:, canvas.shift : -1], (0, canvas.shift)) * open_
        surest = confidence.argsort(dim=1, descending=True, stable=True)[:, :2]
        values = (self.alpha * confidence + always).scatter_add(1, surest, _SUREST * open_.gather(1, surest))
        return Ranking(pad(values, (0, 1)), least)

    def _steps(self) -> list[tuple[float, float]]:
        """Depths and the shares that go on there, by depth."""
        return sorted([(self.depth1, self.share1), (self.depth2, self.share2)], key=lambda step: step[0])
