"""Dual adaptive cache (d2Cache): a forward computes likely next masks, changed tokens and highly attended tokens.

d2Cache: Accelerating Diffusion-Based LLMs via Dual Adaptive Caching, https://arxiv.org/abs/2509.23094

    queried = everything in the first forward, otherwise the union of
        the k masks of the highest  p_i density_i,  the block's first, then those of later blocks until there are k
            (in families with shifted predictions, the positions before them)
        what was committed (or reopened) since the last forward
        the most important other positions, until they have the share `rollout` of the importance, at least one
        the positions between two of these that are at most `fill` apart
    importance = column sums of A_N ... A_1,  A_l = (a_l + 1) / 2 with the attention a_l of layer l, mean over heads,
      in the rows that were queried, and 1 in the others

p is the probability of a position's likeliest token by the forward that predicted it last; `density` says what
density is. Only the k masks can be committed. A forward holds the attention of all its layers until they have been
multiplied: 4 bytes times layers, queries and length.

Deviates from the authors' code: p is updated at every forward, as intended; theirs stays the first forward's (it is
assigned to a copy). The block's masks are those of the coming step. Each row of a batch queries its own set, without
padding to the largest. `refresh` is added.
Exact: no, but for `refresh=1`.

Attention rollout, the attention to every position through all layers, is that of Quantifying Attention Flow in
Transformers, https://arxiv.org/abs/2005.00928:

    column sums of  A_N ... A_1,  A_l = (a_l + 1) / rows' sums,  1 in the rows that a forward did not query
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...batching import RowState
from ...host_transfer import upload
from ...ops.confidence import certainty_density
from ...ops.position_sets import between, columns_of, first_columns, nucleus
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import CAUSAL_KINDS, AttentionMaps, AttentionSpec, Cache, Canvas, Evidence, QuerySpec
from .changes import LastTokens, elapsed, rows_predicting


def attention_rollout(maps: AttentionMaps) -> Tensor:
    """[B, L + 1]: for each position, the sum of its column of the attention rollout; `maps` has every layer's weights.

    From the last layer down, a vector at a time: no two maps are multiplied.
    """
    queried = maps.positions
    first = maps.layers[0]
    weight = torch.ones(first.shape[0], first.shape[2], device=first.device)
    others = weight.scatter(1, queried, 0)
    for layer in range(maps.count - 1, -1, -1):
        attention = maps.layers[layer]
        own = weight.gather(1, queried) * maps.known / (attention.sum(2) + 1)
        through = torch.bmm(own[:, None], attention)[:, 0]
        weight = (weight * others + through).scatter_add(1, queried, own)
    return weight


class State(RowState):
    """The tokens, probabilities and importance kept from earlier forwards.

    Attributes:
        probability: [B, L] float32, of each mask's likeliest token.
        importance: [B, L] float32.
    """

    per_row = ("tokens", "probability", "importance")

    def __init__(self, canvas: Canvas) -> None:
        self.tokens = LastTokens(canvas)
        self.probability, self.importance = np.zeros((2, len(canvas), canvas.length), dtype=np.float32)

    def note(self, read: Mapping[str, np.ndarray]) -> None:
        """Keeps what a forward has found."""
        self.probability, self.importance = read["probability"], read["importance"]


@register("d2cache", checked="reference:reference.naive_dependence.DualAdaptive")
class DualAdaptiveCache(Cache):
    attention = "bidirectional"
    conflicts: ClassVar[Reasons] = dict.fromkeys(
        CAUSAL_KINDS,
        Why(
            "{me} computes masks in later blocks, which no block of this model sees: {does}",
            "use the cache block, causal or window",
        ),
    )
    provides = frozenset({Trait.STORES_KV, Trait.READS_WHOLE_ROW})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (32, 16), "rollout": (0.1, 0.3)}

    k: Annotated[int, "masks that a forward computes"] = 32
    rollout: Annotated[float, "share of the total importance that the other computed positions cover"] = 0.1
    sigma: Annotated[float, "standard deviation of the density's Gaussian, in positions"] = 10.0
    fill: Annotated[
        int, "where two computed positions are at most this far apart, those between them are computed too"
    ] = 4
    refresh: Annotated[int, "steps between full forwards: 0 only the first of a row, 1 always"] = 0

    def __post_init__(self) -> None:
        self.require("k", least=1)
        self.require("rollout", least=0, most=1)
        self.require("sigma", least=0.1, most=10_000)
        self.require("fill", "refresh", least=0)

    @property
    def exact(self) -> str:
        return "greedy" if self.refresh == 1 else "relaxed"

    def reads_attention(self, layers: int) -> AttentionSpec:
        return AttentionSpec(tuple(range(layers)), every=True)

    def start(self, canvas: Canvas) -> State:
        return State(canvas)

    def observe(self, evidence: Evidence, canvas: Canvas, state: State) -> None:
        maps, predictions = evidence.attention, evidence.predictions
        assert maps is not None, "it is read"
        assert predictions is not None, "they are read"
        device, at = evidence.positions.device, np.arange(canvas.length + 1)
        fresh = upload(np.pad(state.probability, ((0, 0), (0, 1))), device)
        own = torch.where(evidence.eligible, evidence.distribution.greedy[1], fresh.gather(1, evidence.positions))
        fresh.scatter_(1, evidence.positions, own)
        which = canvas.open_host & (at >= canvas.block_end[:, None]) & (at < canvas.end[:, None])
        columns = upload(columns_of(which, canvas.length), device)
        predicted = predictions.has(columns) & (columns < canvas.length)
        within = first_columns(predicted, maps.positions.shape[1], columns.shape[1])
        if within.shape[1]:
            columns = pad(columns, (0, 1), value=canvas.length).gather(1, within)
            fresh.scatter_(1, columns, predictions.at(columns).greedy[1])
        canvas.read_later({"probability": fresh[:, :-1], "importance": attention_rollout(maps)[:, :-1]}, state.note)

    def query(self, canvas: Canvas, state: State) -> QuerySpec:
        changed = state.tokens.changed(canvas)[:, :-1]
        full = (canvas.nfe == 0) | elapsed(canvas, self.refresh)
        inside = np.arange(canvas.length) < canvas.end[:, None]
        if full.all():
            return QuerySpec(np.zeros_like(canvas.end), canvas.end)
        masks = self._masks(canvas, state)
        queried = rows_predicting(masks, canvas.shift) | changed
        queried |= nucleus(np.where(queried | ~inside, 0, state.importance), self.rollout)
        queried |= between(queried, self.fill)
        mask = np.where(full[:, None], inside, queried & inside)
        only = np.take_along_axis(np.pad(masks | full[:, None], ((0, 0), (0, 1))), canvas.window_host, 1)
        return QuerySpec(np.zeros_like(canvas.end), canvas.end, torch.from_numpy(mask), only=torch.from_numpy(only))

    def _masks(self, canvas: Canvas, state: State) -> np.ndarray:
        """[B, L] bool: the masks that may be committed next."""
        at, open_ = np.arange(canvas.length), canvas.open_host[:, :-1]
        density = certainty_density(torch.from_numpy(~open_), torch.from_numpy(canvas.total), self.sigma).numpy()
        block = (at >= canvas.block_start[:, None]) & (at < canvas.block_end[:, None])
        enough = (open_ & (at >= canvas.block_start[:, None])).cumsum(1) >= self.k
        kth = np.where(enough.any(1), enough.argmax(1), canvas.total - 1)
        blocks = (kth - canvas.origin) // canvas.block_length + 1
        reach = np.maximum(canvas.origin + blocks * canvas.block_length, canvas.block_end)
        among = open_ & (at >= canvas.block_start[:, None]) & (at < reach[:, None])
        score = np.where(among, state.probability * density + 2 * block, -1)  # masks of the block rank first
        rank = (-score).argsort(1, kind="stable").argsort(1, kind="stable")
        masks: np.ndarray = (rank < self.k) & among
        return masks
