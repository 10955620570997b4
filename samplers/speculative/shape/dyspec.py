"""Drafts the tree of a given size that is most likely to be accepted, according to the drafting model.

DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure, https://arxiv.org/abs/2410.11744

    slot j under a node of value v:  s_1 = v,  s_(j+1) = s_j (1 - R_j(y_j));  its token y_j has the value s_j R_j(y_j)
    kept: the `nodes` slots of the highest s;  R_j = q without y_1 .. y_(j-1)

A slot is valued before its token is sampled, so that choosing slots changes no distribution. At temperature 0 the
tokens themselves are valued, by the product of q along their path.

Deviates from the paper: the drafter runs once a level, on all nodes that may still be kept; as no child has a higher
value than its parent, the tree is the one of the paper's greedy search, which runs the drafter once a node.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...registry import register
from ..contracts import DecodeContext, Draft, DraftModel, Shape, Uniforms
from ._growth import Tree, drops_last, packed, stopped_rows
from ._siblings import conditional_distributions, siblings


@register("dyspec", stage="shape", paper="arXiv:2410.11744", exact="greedy", checked="joint")
@dataclass(frozen=True)
class DySpec(Shape):
    adaptive: ClassVar[bool] = True

    nodes: Annotated[int, "drafted tokens, in all"] = 64
    children: Annotated[int, "the most of one node"] = 8

    def __post_init__(self) -> None:
        self.require("nodes", "children", least=1)

    def width(self, k: int) -> int:
        return 1 + self.nodes * k  # fed before the last level, and the last level of the result

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        text, sampling, device = context.text, context.request.temperature > 0, context.text.device
        tree, live = Tree(text), budget > 0
        reach = torch.ones(len(text), 1, dtype=torch.float64, device=device)  # [B, M] value of each node's token
        column = torch.zeros_like(tree.tokens)  # [B, M] index of the distribution behind each node's parent
        distributions: list[Tensor] = []
        frontier = torch.from_numpy(np.where(live, 0, -1)).to(device)[:, None]
        for depth in range(int(budget.max())):
            order = torch.arange(frontier.shape[1], device=device)
            logits = draft_model.forward(tree.draft(), frontier)
            stopped = stopped_rows(context, draft_model, logits, frontier, depth)
            keys = depth * (self.nodes + 1) + order
            children = siblings(logits, min(self.children, self.nodes), context, uniforms, keys.expand_as(frontier))
            more = live if stopped is None else live & ~stopped
            expanding = torch.from_numpy(more if drops_last(context) else live).to(device)[:, None, None]
            parent_reach = reach.gather(1, frontier.clamp(min=0))[..., None] * expanding
            remaining = (1 - children.share.double()).cumprod(-1)
            value = parent_reach * torch.cat((torch.ones_like(remaining[..., :1]), remaining[..., :-1]), -1)
            value = value.masked_fill(~children.real | (frontier < 0)[..., None], 0)
            token = value * children.share
            offset = sum(distribution.shape[1] for distribution in distributions)
            distributions.append(children.distribution)
            tree.add(children.tokens, value if sampling else token, frontier)
            reach = torch.cat((reach, token.flatten(1)), 1)
            columns = (offset + order)[None, :, None].expand_as(children.tokens)
            column = torch.cat((column, columns.reshape(len(column), -1)), 1)
            live = more & (budget > depth + 1)
            next_level = tree.best(self.nodes) & (tree.depths == depth + 1) & (reach > 0)
            next_level &= torch.from_numpy(live).to(device)[:, None]
            width = int(next_level.sum(1).max())
            if not width:
                break
            frontier = packed(next_level, width)
        draft, nodes = tree.cut(tree.best(self.nodes), draft_model)
        if not sampling:
            return draft
        where = column.gather(1, nodes)[..., None].expand(-1, -1, distributions[0].shape[-1])
        distribution = torch.cat(distributions, 1).gather(1, where)
        q = conditional_distributions(draft.tokens, draft.parent, distribution, replacement=context.siblings == "with")
        return Draft(draft.tokens, draft.sizes, draft.base, draft.parents, draft.depths, draft.levels, q=q)
