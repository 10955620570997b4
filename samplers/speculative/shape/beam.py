"""Drafts a tree by beam search: each level's most likely nodes are expanded, and the most likely of all are kept.

EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees, https://arxiv.org/abs/2406.16858

    score of a node = log q along its path;  of each level the top `beams` are expanded
    in the end the `nodes` of the highest score are kept, which include their parents

No child has a higher score than its parent: a node that is not among the `nodes` highest already is not expanded, and
a level without any ends the draft, which changes nothing of the tree. On a GPU all levels are drafted, since the host
would have to wait to see that one has none.

Deviates from the authors' code: the depth is the drafter's k, which is their `depth` + 1, and `nodes` is their
`total_token` - 1. By default q has the temperature and filters of the request; theirs has none (`raw`). The children
are the top tokens of q, not samples, so they count as point masses; tested against q, as published, sampling would not
be exact.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from ...ops.confidence import likeliest
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, DraftModel, Shape, Uniforms
from .tree_growth import Tree, drops_last, stopped_rows


@register("beam", exact="greedy", checked="golden/eagle reference:samplers.speculative.test_beam.naive joint")
class Beam(Shape):
    beams: Annotated[int, "nodes expanded per level, and children of each"] = 10
    nodes: Annotated[int, "most drafted tokens"] = 60
    raw: Annotated[bool, "the drafter's probabilities without temperature and filters, as published"] = False

    def __post_init__(self) -> None:
        self.require("beams", "nodes", least=1)

    conflicts: ClassVar[Reasons] = {
        Trait.INDEPENDENT_SIBLINGS: Why(
            "{me} keeps the most likely children, and {does}", "use template or dyspec, or another acceptance"
        )
    }

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.UNPROCESSED_SCORES} if self.raw else super().provides

    def width(self, k: int) -> int:
        return 1 + self.beams * (k - 1) + self.nodes  # nodes fed, and nodes kept without being fed

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        tree, live = Tree.of(context.text), budget > 0
        frontier = tree.own(np.where(live, 0, -1)[:, None])
        for depth in range(int(budget.max())):
            nodes = tree.put(frontier)
            over = draft_model.forward_subset(tree.draft(), nodes)
            stopped = stopped_rows(context, draft_model, over.logits, nodes, depth)
            top, columns = likeliest(over.logits, self.beams)
            more = live if stopped is None else live & ~stopped
            expanding = tree.own((more if drops_last(context) else live)[:, None]) & (frontier >= 0)
            values = tree.values[tree.rows, frontier.clip(0)] * expanding
            first = tree.tokens.shape[1]
            tree.add(tree.own(over.tokens(columns)), values[..., None] * tree.own(top.exp()), frontier)
            live = more & (budget > depth + 1)
            if not live.any():
                break
            level = tree.xp.where(tree.best(self.nodes)[:, first:], tree.values[:, first:], 0)
            frontier = tree.packed(tree.highest(level * tree.own(live[:, None]), self.beams), self.beams)
            if not frontier.shape[1]:
                break
            frontier = tree.xp.where(frontier >= 0, frontier + first, -1)
        return tree.cut(self.nodes, draft_model)[0]
