"""Drafts with states of coming positions that enter at a middle layer and run the rest in the verify forward.

Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration, https://arxiv.org/abs/2404.12022

    after layer l_j every node t of the draft gets a probe node at position t + j with the state T_j f^(l_j)_t
    the logits at the probe nodes of the last accepted node are the next round's, for depths 1 .. k of its draft

A probe node runs the layers after l_j and attends to its node, to what the node attends to, and to the node's earlier
probe nodes. No other node attends to it.

Deviates from the paper: any batch, shape and acceptance; `carry` gives the queries after a node by its depth. The
prompt's forward has none, so the first draft comes a round later.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from pardec.models.draft_modules.transfer import HiddenTransfer

from ...registry import register
from ..contracts import ProbeInjection, ProbeLayout, ProbeNodes
from .probe_drafter import ProbeDrafter


@register("transfer", exact="greedy", checked="reference:reference.naive_queries.pseudo_logits joint")
class Transfer(ProbeDrafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (3, 2, 1)}

    def chains(self, module: HiddenTransfer) -> ProbeLayout:
        return ProbeLayout.single(min(self.k, module.steps))

    def begin(self, queries: ProbeNodes, module: HiddenTransfer) -> ProbeNodes:
        steps = range(len(queries.chains.step))
        return replace(queries, splices=tuple(ProbeInjection(module.layers[j], partial(module.make, j)) for j in steps))
