"""Drafts the tree of a given size that is most likely to be accepted, as the drafting model sees it.

DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure, https://arxiv.org/abs/2410.11744

    place j under a node of value v:  s_1 = v,  s_(j+1) = s_j (1 - R_j(y_j));  the token drawn there: value s_j R_j(y_j)
    kept: the `nodes` places of the highest s;  R_j = q without y_1 .. y_(j-1)

A place is judged before its token is drawn, so that choosing places changes no law. At temperature 0 tokens are judged
themselves, by the product of q along their path.

Deviates from the paper: the drafter is asked once a level, for all nodes that may still be kept; as no child is worth
more than its parent, the tree is the one that the paper's greedy search finds, one drafter call a node.
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
from ._growth import Tree, drops, left_off, packed
from ._siblings import given_distributions, siblings


@register("dyspec", stage="shape", paper="arXiv:2410.11744", exact="greedy", checked="joint")
@dataclass(frozen=True)
class DySpec(Shape):
    adaptive: ClassVar[bool] = True

    nodes: Annotated[int, "drafted tokens, in all"] = 64
    children: Annotated[int, "the most of one node"] = 8

    def __post_init__(self) -> None:
        self.require("nodes", "children", least=1)

    def width(self, k: int) -> int:
        return 1 + self.nodes * k  # heard before the last level, and the last level of what is kept

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        text, sampled, device = context.text, context.request.temperature > 0, context.text.device
        tree, live = Tree(text), budget > 0
        reach = torch.ones(len(text), 1, dtype=torch.float64, device=device)  # [B, M] value of each node's token
        column = torch.zeros_like(tree.tokens)  # [B, M] where the law behind each node's parent stands
        distributions: list[Tensor] = []
        frontier = torch.from_numpy(np.where(live, 0, -1)).to(device)[:, None]
        for depth in range(int(budget.max())):
            order = torch.arange(frontier.shape[1], device=device)
            logits = draft_model.forward(tree.draft(), frontier)
            ended = left_off(context, logits, frontier, depth)
            keys = depth * (self.nodes + 1) + order
            made = siblings(logits, min(self.children, self.nodes), context, uniforms, keys.expand_as(frontier))
            more = live if ended is None else live & ~ended
            going = torch.from_numpy(more if drops(context) else live).to(device)[:, None, None]
            given = reach.gather(1, frontier.clamp(min=0))[..., None] * going
            lost = (1 - made.share.double()).cumprod(-1)
            place = given * torch.cat((torch.ones_like(lost[..., :1]), lost[..., :-1]), -1)
            place = place.masked_fill(~made.real | (frontier < 0)[..., None], 0)
            token = place * made.share
            seen = sum(distribution.shape[1] for distribution in distributions)
            distributions.append(made.distribution)
            tree.add(made.tokens, place if sampled else token, frontier)
            reach = torch.cat((reach, token.flatten(1)), 1)
            columns = (seen + order)[None, :, None].expand_as(made.tokens)
            column = torch.cat((column, columns.reshape(len(column), -1)), 1)
            live = more & (budget > depth + 1)
            next_level = tree.best(self.nodes) & (tree.depths == depth + 1) & (reach > 0)
            next_level &= torch.from_numpy(live).to(device)[:, None]
            width = int(next_level.sum(1).max())
            if not width:
                break
            frontier = packed(next_level, width)
        draft, nodes = tree.cut(tree.best(self.nodes), draft_model)
        if not sampled:
            return draft
        where = column.gather(1, nodes)[..., None].expand(-1, -1, distributions[0].shape[-1])
        distribution = torch.cat(distributions, 1).gather(1, where)
        q = given_distributions(draft.tokens, draft.parent, distribution, replaced=context.siblings == "with")
        return Draft(draft.tokens, draft.sizes, draft.base, draft.parents, draft.depths, draft.levels, q=q)
