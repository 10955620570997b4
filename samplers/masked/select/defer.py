"""Chooses nothing: a revise stage writes every position of the block at each step.

Sumi: Open Uniform Diffusion Language Model from Scratch, https://arxiv.org/abs/2606.19005

    chosen = {}

Under uniform noise any token may change at any step, so no position is committed before another. The methods
`ancestral` and `adaptive` name this select where the spec has none.
Exact: no.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Proposal, Select


@register("defer", checked="reference:reference.naive_uniform.decode")
class Defer(Select):
    provides = frozenset({Trait.MAY_WAIT})
    requires: ClassVar[Reasons] = {
        Trait.WRITES_BLOCKS: Why("defer commits nothing, and no stage writes the block", "write ancestral or adaptive")
    }
    conflicts: ClassVar[Reasons] = {
        Trait.WIDENS: Why("{me} commits nothing, and {does}, which has no effect", "leave {other} out")
    }

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        return torch.zeros_like(proposal.eligible)
