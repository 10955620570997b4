"""Drafts a chain, one token after the other.

Fast Inference from Transformers via Speculative Decoding, https://arxiv.org/abs/2211.17192

    x_i ~ q(. | text, x_1 .. x_(i-1)),  i = 1 .. k;  at temperature 0 x_i = argmax q, a point mass

Deviates from the paper: the length controller ends each row on its own.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...host_transfer import upload
from ...ops.confidence import argmax
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, Shape, SubsetLogits, Uniforms
from .tree_growth import drops_last, never_stops, stopped_rows


@register("chain", exact="greedy", checked="reference:samplers.speculative.test_chain.naive joint")
class Chain(Shape):
    provides = frozenset({Trait.DRAFTS_ONE_CHAIN})

    def width(self, k: int) -> int:
        return k + 1

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: None
    ) -> Draft:
        text, sampling = context.text, context.request.temperature > 0
        if len(budget) == 1 and not sampling and never_stops(context):
            whole = draft_model.greedy_chain(int(budget[0]))
            if whole is not None:
                return Draft(whole, budget + 1, text.length - 1)
        tokens, counts, live = [text.last], np.zeros_like(budget), budget > 0
        distributions: list[Tensor] = []
        for step in range(int(budget.max())):
            draft = Draft(torch.stack(tokens, 1), counts + 1, text.length - 1, grows=live)
            nodes = upload(np.where(live, step, -1), text.device)[:, None]
            over = (
                SubsetLogits(draft_model.forward(draft, nodes))
                if sampling
                else draft_model.forward_subset(draft, nodes)
            )
            logits = over.logits
            stopped = stopped_rows(context, draft_model, logits, nodes, step)
            if sampling:
                distributions.append(logits[:, 0].softmax(-1))
                tokens.append(uniforms.draw(distributions[-1], "draft", step))
            else:
                tokens.append(over.tokens(argmax(logits[:, 0])))
            more = live if stopped is None else live & ~stopped
            counts = counts + (more if drops_last(context) else live)
            live = more & (budget > step + 1)
            if not live.any():
                break
        deep = int(counts.max())
        q = torch.stack([torch.zeros_like(distributions[0]), *distributions[:deep]], 1) if distributions else None
        return Draft(torch.stack(tokens[: deep + 1], 1), counts + 1, text.length - 1, q=q)
