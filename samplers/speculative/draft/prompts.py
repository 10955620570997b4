"""Drafts with learned prompt tokens: the verify forward computes them after every node, so no forward is added.

PPD: Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference,
https://arxiv.org/abs/2405.18628

    v_1 .. v_s are fed after node n at the positions 1 .. s after it;  v_j predicts the token j + 1 positions after n
    the logits at the vectors of the last accepted node are the next round's, for depths 1 .. s of its draft

A vector attends to its node, to what the node attends to, and to earlier vectors of the node; no node attends to one.

Deviates from the authors' code: any batch, shape, acceptance and number of steps; `carry` gives the vectors after a
node, and one draft has one shape, where theirs has a tree of its own for every number of vectors; for measured hit
rates, `scripts/prompt_tree.py` writes the spec of the best one. The prompt's forward carries no vectors, so the first
draft comes a round later.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pardec.models.draft_modules.prompts import PromptVectors

from ...registry import register
from ..contracts import ProbeLayout, ProbeNodes
from .probe_drafter import ProbeDrafter


@register("prompts", exact="greedy", checked="reference:reference.naive_queries.prompt_logits joint")
class Prompts(ProbeDrafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (3, 2, 1)}

    def chains(self, module: PromptVectors) -> ProbeLayout:
        length = min(self.k, module.steps) * module.each
        return ProbeLayout(module.step[:length], module.above[:length])

    def begin(self, queries: ProbeNodes, module: PromptVectors) -> ProbeNodes:
        return replace(queries, inputs=module.vectors[: len(queries.chains.step)])
