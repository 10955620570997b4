"""Drafts a tree of a fixed shape: every node of a level has the same number of children.

SpecInfer: Accelerating Generative Large Language Model Serving with Tree-based Speculative Inference and Verification,
https://arxiv.org/abs/2305.09781
Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without Replacement,
https://arxiv.org/abs/2402.14160

    a node of level d has w_d children: the top w_d of log q + Gumbel noise, in descending order, which samples
    without replacement; w_d independent samples if the acceptance needs those; at temperature 0 the top w_d of q

Deviates from SpecInfer: siblings are sampled with replacement only for acceptances that need it. If q has fewer tokens
than a node has children, the remaining nodes are fed but never tested.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ...spec_values import MAX_INT_PARAM
from ..contracts import DecodeContext, Draft, DraftModel, Shape, Uniforms
from .siblings import conditional_distributions, siblings
from .tree_growth import drops_last, stopped_rows


@register("template", exact="greedy", checked="joint")
class Template(Shape):
    widths: Annotated[str, "children of each node, level by level; the drafter's k cuts it"] = "1-1-3-1-1-1-1-1"

    def __post_init__(self) -> None:
        for part in self.widths.split("-"):
            if not (part.isdecimal() and len(part) <= len(str(MAX_INT_PARAM)) and 0 < int(part) <= MAX_INT_PARAM):
                raise SpecError(
                    f"template: widths must be whole numbers above 0 joined by '-', got {self.widths!r}",
                    hint=f"widths=3-2-1; none is above {MAX_INT_PARAM}",
                )

    @property
    def levels(self) -> tuple[int, ...]:
        """The number of children per node at each level."""
        return tuple(map(int, self.widths.split("-")))

    def width(self, k: int) -> int:
        return 1 + sum(accumulate(self.levels[:k], int.__mul__))

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        text, batch, device = context.text, len(context.text), context.text.device
        base, sizes, live = text.length - 1, np.ones_like(budget), budget > 0
        tokens, verify = text.last[:, None], torch.ones(batch, 1, dtype=torch.bool, device=device)
        parents, depths = upload(torch.tensor([-1]), device), torch.zeros(1, dtype=torch.int64, device=device)
        distributions: list[Tensor] = []
        level = torch.zeros(1, dtype=torch.int64, device=device)  # the nodes of the level above
        for depth, count in enumerate(self.levels[: int(budget.max())]):
            draft = Draft(tokens, np.full_like(sizes, len(parents)), base, parents, depths) if depth else None
            nodes = torch.where(upload(live, device)[:, None], level, -1)
            logits = draft_model.forward(draft or Draft.none(text), nodes)
            stopped = stopped_rows(context, draft_model, logits, nodes, depth)
            children = siblings(logits, count, context, uniforms, level.expand(batch, -1))
            distributions.append(children.distribution)
            above = level.repeat_interleave(count)
            level = len(parents) + torch.arange(len(above), device=device)
            tokens = torch.cat((tokens, children.tokens.flatten(1)), 1)
            verify = torch.cat((verify, children.real.flatten(1) & verify[:, above]), 1)
            parents, depths = torch.cat((parents, above)), torch.cat((depths, torch.full_like(above, depth + 1)))
            more = live if stopped is None else live & ~stopped
            sizes = sizes + len(level) * (more if drops_last(context) else live)
            live = more & (budget > depth + 1)
            if not live.any():
                break
        fed = int(sizes.max())
        tokens, verify, parents, depths = tokens[:, :fed], verify[:, :fed], parents[:fed], depths[:fed]
        q = None
        if context.request.temperature:
            distribution = torch.cat(distributions, 1)[:, parents.clamp(min=0)]
            q = conditional_distributions(
                tokens, parents.expand(batch, -1), distribution, replacement=context.siblings == "with"
            )
        return Draft(tokens, sizes, base, parents, depths, levels=len(distributions), verify=verify, q=q)
