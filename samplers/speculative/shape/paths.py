"""Drafts a tree of fixed paths: each node is the child of a given rank of its parent.

Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, https://arxiv.org/abs/2401.10774

    node (r_1 .. r_d): child r_d, from 0 for the likeliest, of node (r_1 .. r_(d-1)); sorted by length, then by ranks
    at temperature 0, or with `top`: rank r is the token of the (r + 1)-th highest q, a point mass
    else a node's children are sampled as `template` samples them; rank r is the (r + 1)-th sample

`tree` is the name of a published one, or paths joined by '-' whose ranks are joined by '.': 0-1-0.0-0.1-1.0. A path's
parents, and its siblings of lower ranks, must be in the tree. Only nodes that have children are expanded.
`best_paths` in `scripts/prompt_tree.py` grows the tree that is best for measured hit rates.

Deviates from the authors' code: at a temperature theirs keeps the likeliest tokens, which is `top=true`.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, DraftModel, Shape, SubsetLogits, Uniforms
from ..ops.trees import Path
from .paths_tree import read_tree, tree_levels
from .siblings import conditional_distributions, likeliest, siblings
from .tree_growth import drops_last, stopped_rows

_TOP = "leave top out, or use another acceptance"


@register("paths", exact="greedy", checked="golden/heads reference:samplers.speculative.test_paths.ranked joint")
class Paths(Shape):
    tree: Annotated[str, "name of a published tree, or its paths; the drafter's k cuts it"] = "mc_sim_7b_63"
    top: Annotated[bool, "the likeliest tokens at any temperature, instead of samples"] = False

    def __post_init__(self) -> None:
        self.nodes  # noqa: B018 - refuses what is no tree

    @property
    def nodes(self) -> tuple[Path, ...]:
        """Every path, sorted."""
        return read_tree(self.tree)

    @property
    def fixed_depth(self) -> int:
        return len(self.nodes[-1])

    @property
    def conflicts(self) -> Reasons:
        likeliest = Why("{me}: top=true drafts the likeliest children, and {does}", _TOP)
        return {Trait.INDEPENDENT_SIBLINGS: likeliest} if self.top else {}

    def width(self, k: int) -> int:
        return 1 + sum(len(path) <= k for path in self.nodes)

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        text, batch, device = context.text, len(context.text), context.text.device
        base, sizes, live = text.length - 1, np.ones_like(budget), budget > 0
        sampling = bool(context.request.temperature) and not self.top
        tree, levels = tree_levels(self.tree, device)
        tokens, verify = text.last[:, None], torch.ones(batch, 1, dtype=torch.bool, device=device)
        distributions: list[Tensor] = []
        depth = 0
        for depth, level in enumerate(levels[: int(budget.max())], 1):
            size = tokens.shape[1]
            parents, depths = tree.parents[:size], tree.depths[:size]
            draft = Draft(tokens, np.full_like(sizes, size), base, parents, depths, depth - 1)
            nodes = torch.where(upload(live, device)[:, None], level.parents, -1)
            grown = draft if depth > 1 else Draft.none(text)
            forward = draft_model.forward_subset
            over = SubsetLogits(draft_model.forward(grown, nodes)) if sampling else forward(grown, nodes)
            logits = over.logits
            stopped = stopped_rows(context, draft_model, logits, nodes, depth - 1)
            if sampling:
                children = siblings(logits, level.children, context, uniforms, level.parents.expand(batch, -1))
                candidates, real = children.tokens, children.real
                distributions.append(children.distribution[:, level.column])
            else:
                columns, real = likeliest(logits, level.children)
                candidates = over.tokens(columns)
            tokens = torch.cat((tokens, candidates[:, level.column, level.rank]), 1)
            fits = real[:, level.column, level.rank] & verify[:, level.parents[level.column]]
            verify = torch.cat((verify, fits), 1)
            more = live if stopped is None else live & ~stopped
            sizes = sizes + len(level.rank) * (more if drops_last(context) else live)
            live = more & (budget > depth)
            if not live.any():
                break
        fed = int(sizes.max())
        tokens, verify, parents, depths = tokens[:, :fed], verify[:, :fed], tree.parents[:fed], tree.depths[:fed]
        q = None
        if sampling:
            distribution = torch.cat((distributions[0][:, :1], *distributions), 1)[:, :fed]
            q = conditional_distributions(
                tokens, parents.expand(batch, -1), distribution, replacement=context.siblings == "with"
            )
        return Draft(tokens, sizes, base, parents, depths, levels=depth, verify=verify, q=q)
