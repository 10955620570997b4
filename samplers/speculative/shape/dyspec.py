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

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import to_host, upload
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, Shape, Uniforms
from .siblings import conditional_distributions, siblings
from .tree_growth import Tree, drops_last, packed, stopped_rows


@register("dyspec", stage="shape", paper="arXiv:2410.11744", exact="greedy", checked="joint")
@dataclass(frozen=True)
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
        tree, live, sampling = Tree(context.text), budget > 0, context.request.temperature > 0
        rows, device = tree.rows, context.text.device
        reach = np.ones(tree.tokens.shape)  # [B, M] value of each node's token
        column = np.zeros_like(tree.tokens)  # [B, M] index of the distribution after each node's parent
        distributions: list[Tensor] = []
        frontier = np.where(live, 0, -1)[:, None]
        for depth in range(int(budget.max())):
            nodes, order = upload(frontier, device), np.arange(frontier.shape[1])
            logits = draft_model.forward(tree.draft(), nodes)
            stopped = stopped_rows(context, draft_model, logits, nodes, depth)
            keys = upload(depth * (self.nodes + 1) + order, device)
            children = siblings(logits, min(self.children, self.nodes), context, uniforms, keys.expand_as(nodes))
            new = to_host({"tokens": children.tokens, "share": children.share, "real": children.real})
            more = live if stopped is None else live & ~stopped
            expanding = (more if drops_last(context) else live)[:, None] & (frontier >= 0)
            parent_reach = (reach[rows, frontier.clip(0)] * expanding)[..., None]
            share = new["share"].astype(np.float64)
            remaining = (1 - share).cumprod(-1)
            value = parent_reach * np.concatenate((np.ones_like(share[..., :1]), remaining[..., :-1]), -1) * new["real"]
            token = value * share
            offset = sum(distribution.shape[1] for distribution in distributions)
            distributions.append(children.distribution)
            tree.add(new["tokens"], value if sampling else token, frontier)
            reach = np.concatenate((reach, token.reshape(len(token), -1)), 1)
            columns = np.broadcast_to((offset + order)[None, :, None], token.shape)
            column = np.concatenate((column, columns.reshape(len(token), -1)), 1)
            live = more & (budget > depth + 1)
            next_level = tree.best(self.nodes) & (tree.depths == depth + 1) & (reach > 0) & live[:, None]
            frontier = packed(next_level)
            if not frontier.shape[1]:
                break
        draft, survivors = tree.cut(tree.best(self.nodes), draft_model)
        if not sampling:
            return draft
        where = upload(column[rows, survivors], device)[..., None]
        distribution = torch.cat(distributions, 1).gather(1, where.expand(-1, -1, distributions[0].shape[-1]))
        q = conditional_distributions(draft.tokens, draft.parent, distribution, replacement=context.siblings == "with")
        return Draft(draft.tokens, draft.sizes, draft.base, draft.parents, draft.depths, draft.levels, q=q)
