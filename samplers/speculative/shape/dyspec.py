"""Drafts the tree of a given size that is most likely to be accepted, according to the drafting model.

DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure, https://arxiv.org/abs/2410.11744

    slot j under a node of value v:  s_1 = v,  s_(j+1) = s_j (1 - R_j(y_j));  its token y_j has the value s_j R_j(y_j)
    kept: the `nodes` slots of the highest s;  R_j = q without y_1 .. y_(j-1)

A slot is valued before its token is sampled, so that choosing slots changes no distribution. At temperature 0 the
tokens themselves are valued, by the product of q along their path.

Deviates from the paper: the drafter runs once per level, on all nodes that may still be kept; as no child has a higher
value than its parent, the tree is the one of the paper's greedy search, which runs the drafter once per node.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, Shape, Uniforms
from .siblings import conditional_distributions, siblings
from .tree_growth import Tree, drops_last, stopped_rows


@register("dyspec", exact="greedy", checked="joint")
class DySpec(Shape):
    provides = frozenset({Trait.DRAFTS_TREES, Trait.ADAPTIVE_TREES})

    nodes: Annotated[int, "most drafted tokens"] = 64
    children: Annotated[int, "most children per node"] = 8

    def __post_init__(self) -> None:
        self.require("nodes", "children", least=1)

    def width(self, k: int) -> int:
        return 1 + self.nodes * k  # fed before the last level, and the last level of the result

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        tree, live, sampling = Tree.of(context.text), budget > 0, context.request.temperature > 0
        device, xp = context.text.device, tree.xp
        reach = xp.ones_like(tree.values)  # [B, M] value of each node's token
        column = xp.zeros_like(tree.tokens)  # [B, M] index of the distribution after each node's parent
        distributions: list[Tensor] = []
        frontier = tree.own(np.where(live, 0, -1)[:, None])
        for depth in range(int(budget.max())):
            nodes, order = tree.put(frontier), np.arange(frontier.shape[1])
            logits = draft_model.forward(tree.draft(), nodes)
            stopped = stopped_rows(context, draft_model, logits, nodes, depth)
            keys = upload(depth * (self.nodes + 1) + order, device)
            children = siblings(logits, min(self.children, self.nodes), context, uniforms, keys.expand_as(nodes))
            more = live if stopped is None else live & ~stopped
            expanding = tree.own((more if drops_last(context) else live)[:, None]) & (frontier >= 0)
            parent_reach = (reach[tree.rows, frontier.clip(0)] * expanding)[..., None]
            share = tree.own(children.share.double())
            remaining = xp.concatenate((xp.ones_like(share[..., :1]), (1 - share).cumprod(-1)[..., :-1]), -1)
            value = parent_reach * remaining * tree.own(children.real)
            token = value * share
            offset = sum(distribution.shape[1] for distribution in distributions)
            distributions.append(children.distribution)
            tokens = tree.own(children.tokens)
            tree.add(tokens, value if sampling else token, frontier)
            reach = tree.with_level(reach, token)
            column = tree.with_level(column, tree.own((offset + order)[:, None]) + xp.zeros_like(tokens))
            live = more & (budget > depth + 1)
            if not live.any():
                break
            below = tree.best(self.nodes) & (tree.depths == depth + 1) & (reach > 0)
            frontier = tree.packed(below & tree.own(live[:, None]), self.nodes)
            if not frontier.shape[1]:
                break
        draft, kept = tree.cut(self.nodes, draft_model)
        if not sampling:
            return draft
        where = tree.put(column[tree.rows, kept])[..., None]
        distribution = torch.cat(distributions, 1).gather(1, where.expand(-1, -1, distributions[0].shape[-1]))
        q = conditional_distributions(draft.tokens, draft.parent, distribution, replacement=context.siblings == "with")
        return replace(draft, q=q)
