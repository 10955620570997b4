"""Drafts several tokens a pass: blocks of pairs (token, the target's state before it) behind an EAGLE-1.

Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and
Custom-Designed Decoding Tree, https://arxiv.org/abs/2412.12639

    a node of depth 0, k, 2 k, ..  starts a block: one pass of k queries gives the distributions behind it and behind
    its descendants of the next k - 1 levels, which thus depend on that node alone

With `block=1` this is `eagle`. Deviates from the paper: the tokens of a block are coupled by learned offsets, not by an
LSTM (see `models.draft_modules.falcon`); the tree is the spec's shape; rows of any lengths in a batch.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pardec.models.errors import SpecError
from pardec.models.hidden import Hidden

from ...registry import register
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ._block_pairs import BlockPairState
from ._module import ModuleDrafter, module_of


@register(
    "falcon",
    stage="draft",
    paper="arXiv:2412.12639",
    exact="greedy",
    checked="reference:reference.naive_falcon.outputs joint",
)
@dataclass(frozen=True)
class Falcon(ModuleDrafter):
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 4
    block: Annotated[int | None, "tokens of a pass; by default, and at most, as many as were trained"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None:
            self.require("block", least=1)

    def start(self, context: DecodeContext) -> BlockPairState:
        module = module_of(context)
        block = module.block if self.block is None else self.block
        if block > module.block:
            raise SpecError(
                f"falcon: block is at most {module.block}, as trained in {module.name}, got {block}", "leave block out"
            )
        longest = int(context.text.limit.max())
        scratch = (context.scratch + 1) * block
        return BlockPairState(context, module, module.new_cache(len(context.text), longest, scratch=scratch), block)

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: BlockPairState) -> None:
        state.read_prompt(rows, hidden)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: BlockPairState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: BlockPairState) -> None:
        state.follow(outcome)
