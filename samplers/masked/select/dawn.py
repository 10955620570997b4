"""Commits confident candidates, those that depend on a confident token, and independent ones of medium confidence.

DAWN: Dependency-Aware Fast Inference for Diffusion LLMs, https://arxiv.org/abs/2602.06953

    A = attention, averaged over the heads and the last `layers` layers, 0 on the diagonal and in the columns of sinks,
        which are those with  mean_i A_ij > sink.   i depends on j  iff  A_ij >= edge
    anchors = known positions up to the block's end whose likeliest token, by this forward, has a probability >= high
    sure = {p_i >= high},  induced = {i depends on an anchor, p_i >= induce}
    rest = {p_i >= low}, without these and without what depends on a position that is both induced and sure
    commit = sure + induced + a set of rest, the surest first, none of which depends on another

Left open, `sink`, `edge`, `induce` and `low` are the published values: 0.01, 0.07, 0.7 and 0.75 for LLaDA, and 0.03,
0.1, 0.75 and 0.8 for Dream 7B Instruct, whose predictions are shifted (its base model has edge=0.05,low=0.75). They are
shares of attention, which is spread over the whole row: the values suit rows of some hundred tokens; in a row of 64,
uniform attention gives each column 0.016, more than `sink`.

Deviates from the authors' code: at the end of its greedy pass, which counts rounds by the candidates there were at
first, it commits position 0 of the row once for each that was left out; not here. Its paper leaves out of the rest what
is in conflict with anything that is sure or induced; the code, followed here, only what depends on positions that are
both. A token that a cache leaves out of a forward counts with the probability it was committed with, one that the
request gave with 1, and sinks are those of the positions queried; the code has no cache.
Exact: no.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.position_sets import first_columns, independent_set
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import AttentionSpec, Canvas, Proposal, Select

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_PUBLISHED = (
    {"sink": 0.01, "edge": 0.07, "induce": 0.7, "low": 0.75},
    {"sink": 0.03, "edge": 0.1, "induce": 0.75, "low": 0.8},  # where predictions are shifted
)


@register("dawn", checked="reference:reference.naive_dependence.dawn")
class Dawn(Select):
    provides = frozenset({Trait.READS_WHOLE_ROW})
    conflicts: ClassVar[Reasons] = {
        Trait.BRANCHES: Why(
            "{me} reads the probabilities of committed tokens, and {other} keeps none of a forward",
            "leave one out",
        )
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"low": (0.75, 0.8, 0.9, 0.7, 0.6), "sink": (None, 0.05)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"low": (0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4)}

    low: Annotated[float | None, "least probability of a position that depends on no other; none: published value"] = (
        None
    )
    induce: Annotated[
        float | None, "least probability of a position that depends on an anchor; none: published value"
    ] = None
    high: Annotated[float, "least probability of a confident position, and of an anchor"] = 0.9
    edge: Annotated[float | None, "least attention that counts as a dependence; none: published value"] = None
    sink: Annotated[float | None, "mean attention above which a column is a sink; none: published value"] = None
    layers: Annotated[int, "layers whose attention is read, from the last one"] = 4

    def __post_init__(self) -> None:
        self.require("low", "induce", "high", "edge", "sink", least=0, most=1)
        self.require("layers", least=1)

    def fit(self, model: LanguageModel) -> Dawn:
        published = _PUBLISHED[model.decoding_config.shift]
        chosen: dict[str, Any] = {name: value for name, value in published.items() if getattr(self, name) is None}
        return replace(self, **chosen) if chosen else self

    def reads_attention(self, layers: int) -> AttentionSpec:
        return AttentionSpec(tuple(range(max(layers - self.layers, 0), layers)), every=True)

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        assert self.low is not None, "filled in by fit"
        assert self.induce is not None, "filled in by fit"
        p, eligible = proposal.score, proposal.eligible
        depends = self._dependences(proposal)  # [B, W, L + 1]
        anchors = self._anchors(depends, proposal, canvas)
        sure = eligible & (p >= self.high)
        induced = eligible & (p >= self.induce) & (depends & anchors[:, None]).any(2)
        within = depends.gather(2, canvas.window[:, None].expand(-1, depends.shape[1], -1))  # [B, W, W]
        tied = (within & (induced & sure)[:, None]).any(2)
        rest = eligible & (p >= self.low) & ~sure & ~induced & ~tied
        return sure | induced | independent_set(p, rest, within | within.transpose(1, 2))

    def _dependences(self, proposal: Proposal) -> Tensor:
        """[B, W, L + 1] bool: whether each position of the block depends on each of the row."""
        assert self.edge is not None, "filled in by fit"
        assert self.sink is not None, "filled in by fit"
        maps, block = proposal.evidence.attention, proposal.evidence.positions
        assert maps is not None, "it is read"
        attention = maps.mean(self.reads_attention(maps.count))
        mean = attention.sum(1) / maps.known.sum(1, keepdim=True)
        attention = attention.masked_fill((mean > self.sink)[:, None], 0)
        own = maps.rows_at(block, attention).scatter(2, block[..., None], 0)
        return (own >= self.edge) & proposal.eligible[..., None] & (own > 0)

    def _anchors(self, depends: Tensor, proposal: Proposal, canvas: Canvas) -> Tensor:
        """[B, L + 1] bool: the known, confident tokens on which a position of the block depends."""
        assert self.edge is not None, "filled in by fit"
        known = ~canvas.open_host & (np.arange(canvas.length + 1) < canvas.block_end[:, None])
        which = depends.any(1) & upload(known, depends.device)
        anchors = torch.zeros_like(depends[:, 0])
        # A row of attention sums to 1, so that a position depends on few others.
        each = int((1 + 1e-4) / self.edge) if self.edge else canvas.length
        most = min(int(known.sum(1).max()), int(canvas.eligible_host.sum(1).max()) * each)
        columns = first_columns(which, most, canvas.length)
        if not columns.shape[1]:
            return anchors
        predictions = proposal.evidence.predictions
        assert predictions is not None, "they are read"
        before = canvas.commit_score.gather(1, columns)
        before = torch.where(canvas.commit_step.gather(1, columns) >= 0, before, 1.0)
        probability = torch.where(predictions.has(columns), predictions.at(columns).greedy[1], before)
        return anchors.scatter(1, columns, (probability >= self.high) & (columns < canvas.length))
